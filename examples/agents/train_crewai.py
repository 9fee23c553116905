"""A crew of one on CrewAI, trained. CrewAI needs older versions than the other SDKs: give it an environment of its own.

pip install crewai
CREWAI_DISABLE_TELEMETRY=true python examples/agents/train_crewai.py --steps 15
"""

from __future__ import annotations

import logging

from common import INSTRUCTIONS, MAX_TURNS, parser, problems, report, running, training
from crewai import LLM as CrewLLM
from crewai import Agent, Crew, Task
from crewai.tools import tool

from mini_agentic_rl import LLM, MiniGRPO, Trainer, rollout
from mini_agentic_rl.rewards import is_correct
from mini_agentic_rl.tools import calculate

logging.getLogger("crewai.llms.base_llm").setLevel(logging.ERROR)  # it warns of each call that it guesses the length


@tool("calculator")
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


def make_crew(llm: LLM, stream: bool = False) -> Crew:
    solver = Agent(
        role="mathematician",
        goal="Solve the problem.",
        backstory=INSTRUCTIONS,
        tools=[calculator],
        llm=CrewLLM(
            model=f"openai/{llm.model}",
            base_url=llm.endpoint,
            api_key=llm.api_key or "none",
            stream=stream,
            **llm.sampling_parameters,
        ),
        max_iter=MAX_TURNS,
    )
    problem = Task(description="{question}", expected_output='"Answer: N"', agent=solver)
    return Crew(agents=[solver], tasks=[problem])


@rollout
def solve(task, llm: LLM) -> float:
    """One rollout: the reward is 1 for the right answer."""
    output = make_crew(llm).kickoff({"question": task["question"]})
    return float(is_correct(output.raw, task["answer"]))


def main() -> None:
    options = parser(__doc__).parse_args()
    trainer = Trainer(algorithm=MiniGRPO(options.model, **training(options)), **running(options))
    trainer.fit(solve, problems(options, "train"), val_dataset=problems(options, "test"))
    report(trainer)


if __name__ == "__main__":
    main()
