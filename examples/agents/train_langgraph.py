"""A graph written with LangGraph, trained.

pip install langgraph langchain-openai
python examples/agents/train_langgraph.py --steps 15
"""

from __future__ import annotations

from common import INSTRUCTIONS, MAX_TURNS, parser, problems, report, running, training
from langchain_core.messages import SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from mini_agentic_rl import LLM, MiniGRPO, Trainer, rollout
from mini_agentic_rl.rewards import is_correct
from mini_agentic_rl.tools import calculate

LIMIT = {"recursion_limit": 2 * MAX_TURNS}


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


def make_graph(llm: LLM):
    model = ChatOpenAI(
        model=llm.model, base_url=llm.endpoint, api_key=llm.api_key or "none", **llm.sampling_parameters
    ).bind_tools([calculator])

    async def think(state: MessagesState):
        return {"messages": [await model.ainvoke([SystemMessage(INSTRUCTIONS), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([calculator]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile()


@rollout
async def solve(task, llm: LLM) -> float:
    """One rollout: the reward is 1 for the right answer."""
    try:
        state = await make_graph(llm).ainvoke({"messages": [("user", task["question"])]}, LIMIT)
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
