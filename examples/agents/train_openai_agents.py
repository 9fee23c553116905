"""An agent on the OpenAI Agents SDK, trained. The SDK calls /v1/responses; with --api chat, /v1/chat/completions.

pip install openai-agents
python examples/agents/train_openai_agents.py --steps 15
"""

from __future__ import annotations

from agents import (
    Agent,
    AgentsException,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from common import INSTRUCTIONS, MAX_TURNS, parser, problems, report, running, training
from openai import AsyncOpenAI

from mini_agentic_rl import LLM, LitAgent, MiniGRPO, Trainer
from mini_agentic_rl.rewards import is_correct
from mini_agentic_rl.tools import calculate

set_tracing_disabled(True)  # the SDK would send its traces to OpenAI


@function_tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


def make_agent(llm: LLM, client: AsyncOpenAI, api: str = "responses") -> Agent:
    model = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    return Agent(
        name="solver",
        instructions=INSTRUCTIONS,
        tools=[calculator],
        model=model(llm.model, client),
        model_settings=ModelSettings(**llm.sampling_parameters),
    )


class Solver(LitAgent):
    """One rollout: the reward is 1 for the right answer."""

    def __init__(self, api: str) -> None:
        super().__init__()
        self.api = api

    async def rollout_async(self, task, resources, rollout):
        llm = resources["llm"].for_rollout(rollout.rollout_id, rollout.attempt.attempt_id)
        async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
            try:
                result = await Runner.run(make_agent(llm, client, self.api), task["question"], max_turns=MAX_TURNS)
            except AgentsException:  # too many turns, or a call of a tool that there is not
                return 0.0
        return float(is_correct(str(result.final_output), task["answer"]))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--api", choices=("responses", "chat"), default="responses", help="which API to call")
    options = arguments.parse_args()
    trainer = Trainer(algorithm=MiniGRPO(options.model, **training(options)), **running(options))
    trainer.fit(Solver(options.api), problems(options, "train"), val_dataset=problems(options, "test"))
    report(trainer)


if __name__ == "__main__":
    main()
