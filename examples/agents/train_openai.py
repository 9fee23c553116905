"""An agent on the plain OpenAI SDK, trained.

python examples/agents/train_openai.py --steps 15
"""

from __future__ import annotations

import json

from common import INSTRUCTIONS, MAX_TURNS, parser, problems, report, running, training
from openai import AsyncOpenAI

from mini_agentic_rl import LLM, MiniGRPO, Trainer, rollout
from mini_agentic_rl.rewards import is_correct
from mini_agentic_rl.tools import CALCULATOR_TOOL, calculate


async def answer(question: str, llm: LLM) -> str:
    """Ask the model, run the calculator as often as it calls it, and return what it says in the end."""
    messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}]
    async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(
                model=llm.model, messages=messages, tools=[CALCULATOR_TOOL], **llm.sampling_parameters
            )
            reply = completion.choices[0].message
            messages.append(reply.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            if not reply.tool_calls:
                return reply.content or ""
            for call in reply.tool_calls:
                expression = json.loads(call.function.arguments).get("expression", "")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": calculate(str(expression))})
    return ""


@rollout
async def solve(task, llm: LLM) -> float:
    """One rollout: the reward is 1 for the right answer."""
    return float(is_correct(await answer(task["question"], llm), task["answer"]))


def main() -> None:
    options = parser(__doc__).parse_args()
    trainer = Trainer(algorithm=MiniGRPO(options.model, **training(options)), **running(options))
    trainer.fit(solve, problems(options, "train"), val_dataset=problems(options, "test"))
    report(trainer)


if __name__ == "__main__":
    main()
