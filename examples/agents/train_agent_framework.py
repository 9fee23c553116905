"""An agent on Microsoft's Agent Framework, trained.

Its `OpenAIChatClient` calls /v1/responses and leaves the conversation with the server (`previous_response_id`); with
--api chat, `OpenAIChatCompletionClient` calls /v1/chat/completions and sends the conversation along.

    pip install agent-framework-core agent-framework-openai
    python examples/agents/train_agent_framework.py --steps 15
"""

from __future__ import annotations

from agent_framework import Agent, tool
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from common import INSTRUCTIONS, MAX_TURNS, parser, problems, report, running, training

from mini_agentic_rl import LLM, LitAgent, MiniGRPO, Trainer
from mini_agentic_rl.rewards import is_correct
from mini_agentic_rl.tools import calculate


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


def make_agent(llm: LLM, api: str = "responses") -> Agent:
    client = (OpenAIChatClient if api == "responses" else OpenAIChatCompletionClient)(
        model=llm.model,
        base_url=llm.endpoint,
        api_key=llm.api_key or "none",
        function_invocation_configuration={"max_iterations": MAX_TURNS},
    )
    return Agent(client, INSTRUCTIONS, name="solver", tools=[calculator], default_options=llm.sampling_parameters)


class Solver(LitAgent):
    """One rollout: the reward is 1 for the right answer."""

    def __init__(self, api: str) -> None:
        super().__init__()
        self.api = api

    async def rollout_async(self, task, resources, rollout):
        llm = resources["llm"].for_rollout(rollout.rollout_id, rollout.attempt.attempt_id)
        response = await make_agent(llm, self.api).run(task["question"])
        return float(is_correct(response.text, task["answer"]))


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--api", choices=("responses", "chat"), default="responses", help="which API to call")
    options = arguments.parse_args()
    trainer = Trainer(algorithm=MiniGRPO(options.model, **training(options)), **running(options))
    trainer.fit(Solver(options.api), problems(options, "train"), val_dataset=problems(options, "test"))
    report(trainer)


if __name__ == "__main__":
    main()
