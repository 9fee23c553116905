"""A LangChain agent, trained.

pip install langchain langchain-openai
python examples/agents/train_langchain.py --steps 15
"""

from __future__ import annotations

from common import INSTRUCTIONS, MAX_TURNS, parser, problems, report, running, training
from langchain.agents import create_agent
from langchain.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError

from mini_agentic_rl import LLM, MiniGRPO, Trainer, rollout
from mini_agentic_rl.rewards import is_correct
from mini_agentic_rl.tools import calculate

LIMIT = {"recursion_limit": 2 * MAX_TURNS}


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


def make_agent(llm: LLM):
    model = ChatOpenAI(model=llm.model, base_url=llm.endpoint, api_key=llm.api_key or "none", **llm.sampling_parameters)
    return create_agent(model, [calculator], system_prompt=INSTRUCTIONS)


@rollout
async def solve(task, llm: LLM) -> float:
    """One rollout: the reward is 1 for the right answer."""
    try:
        state = await make_agent(llm).ainvoke({"messages": [("user", task["question"])]}, LIMIT)
    except GraphRecursionError:  # it called the tool again and again
        return 0.0
    return float(is_correct(state["messages"][-1].text, task["answer"]))


def main() -> None:
    options = parser(__doc__).parse_args()
    trainer = Trainer(algorithm=MiniGRPO(options.model, **training(options)), **running(options))
    trainer.fit(solve, problems(options, "train"), val_dataset=problems(options, "test"))
    report(trainer)


if __name__ == "__main__":
    main()
