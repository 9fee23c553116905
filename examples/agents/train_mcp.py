"""An agent whose tools come from an MCP server, on the plain OpenAI SDK and the plain MCP client, trained.

The server is the package's own calculator, over stdio. Each rollout starts one for itself, as it would with a server
that keeps state; that takes most of a second, so fewer rollouts run at once.

    pip install 'mini-agentic-rl[recipes]'
    python examples/agents/train_mcp.py --steps 15
"""

from __future__ import annotations

import json
import sys

from common import INSTRUCTIONS, MAX_TURNS, parser, problems, report, running, training
from mcp import Client, StdioServerParameters, stdio_client
from openai import AsyncOpenAI

from mini_agentic_rl import LLM, MiniGRPO, Trainer, rollout
from mini_agentic_rl.rewards import is_correct

CALCULATOR = StdioServerParameters(command=sys.executable, args=["-m", "mini_agentic_rl.tools.mcp_calculator"])


async def answer(question: str, llm: LLM) -> str:
    """Ask the model, pass its calls on to the server, and return what it says in the end."""
    messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": question}]
    async with (
        Client(stdio_client(CALCULATOR)) as server,
        AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client,
    ):
        tools = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in (await server.list_tools()).tools
        ]
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(
                model=llm.model, messages=messages, tools=tools, **llm.sampling_parameters
            )
            reply = completion.choices[0].message
            messages.append(reply.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            if not reply.tool_calls:
                return reply.content or ""
            for call in reply.tool_calls:
                result = await server.call_tool(call.function.name, json.loads(call.function.arguments))
                text = "\n".join(part.text for part in result.content if part.type == "text")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
    return ""


@rollout
async def solve(task, llm: LLM) -> float:
    """One rollout: the reward is 1 for the right answer."""
    return float(is_correct(await answer(task["question"], llm), task["answer"]))


def main() -> None:
    arguments = parser(__doc__)
    arguments.set_defaults(concurrency=8)
    options = arguments.parse_args()
    trainer = Trainer(algorithm=MiniGRPO(options.model, **training(options)), **running(options))
    trainer.fit(solve, problems(options, "train"), val_dataset=problems(options, "test"))
    report(trainer)


if __name__ == "__main__":
    main()
