"""A tool-calling agent on smolagents, trained.

It has to call a tool in every turn (`tool_choice: required`), and gives its answer by the tool `final_answer`. It tells
the model of earlier calls in words of its own, so each of its turns is a branch of the rollout's token tree.

    pip install 'smolagents[openai]'
    python examples/agents/train_smolagents.py --steps 15
"""

from __future__ import annotations

from common import INSTRUCTIONS, MAX_TURNS, parser, problems, report, running, training
from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool

from mini_agentic_rl import LLM, MiniGRPO, Trainer, rollout
from mini_agentic_rl.rewards import is_correct
from mini_agentic_rl.tools import calculate


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression.

    Args:
        expression: what to compute, such as 12 * (3 + 4)
    """
    return calculate(expression)


def make_agent(llm: LLM, stream: bool = False) -> ToolCallingAgent:
    model = OpenAIModel(llm.model, api_base=llm.endpoint, api_key=llm.api_key or "none", **llm.sampling_parameters)
    return ToolCallingAgent(
        [calculator],
        model,
        instructions=INSTRUCTIONS,
        max_steps=MAX_TURNS,
        stream_outputs=stream,
        verbosity_level=LogLevel.OFF,
    )


@rollout
def solve(task, llm: LLM) -> float:
    """One rollout: the reward is 1 for the right answer."""
    answer = make_agent(llm).run(task["question"])
    return float(is_correct(str(answer), task["answer"]))


def main() -> None:
    options = parser(__doc__).parse_args()
    trainer = Trainer(algorithm=MiniGRPO(options.model, **training(options)), **running(options))
    trainer.fit(solve, problems(options, "train"), val_dataset=problems(options, "test"))
    report(trainer)


if __name__ == "__main__":
    main()
