"""An AutoGen assistant, trained.

pip install autogen-agentchat 'autogen-ext[openai]'
python examples/agents/train_autogen.py --steps 15
"""

from __future__ import annotations

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily, ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from common import INSTRUCTIONS, MAX_TURNS, parser, problems, report, running, training

from mini_agentic_rl import LLM, MiniGRPO, Trainer, rollout
from mini_agentic_rl.rewards import is_correct
from mini_agentic_rl.tools import calculate


async def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression."""
    return calculate(expression)


def make_client(llm: LLM) -> OpenAIChatCompletionClient:
    return OpenAIChatCompletionClient(
        model=llm.model,
        base_url=llm.endpoint,
        api_key=llm.api_key or "none",
        model_info=ModelInfo(
            vision=False, function_calling=True, json_output=True, structured_output=True, family=ModelFamily.UNKNOWN
        ),
        **llm.sampling_parameters,
    )


def make_agent(client: OpenAIChatCompletionClient, stream: bool = False) -> AssistantAgent:
    return AssistantAgent(
        "solver",
        client,
        tools=[calculator],
        system_message=INSTRUCTIONS,
        max_tool_iterations=MAX_TURNS,
        model_client_stream=stream,
    )


@rollout
async def solve(task, llm: LLM) -> float:
    """One rollout: the reward is 1 for the right answer."""
    client = make_client(llm)
    try:
        result = await make_agent(client).run(task=task["question"])
    finally:
        await client.close()
    return float(is_correct(result.messages[-1].to_model_text(), task["answer"]))


def main() -> None:
    options = parser(__doc__).parse_args()
    trainer = Trainer(algorithm=MiniGRPO(options.model, **training(options)), **running(options))
    trainer.fit(solve, problems(options, "train"), val_dataset=problems(options, "test"))
    report(trainer)


if __name__ == "__main__":
    main()
