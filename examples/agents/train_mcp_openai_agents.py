"""An agent on the OpenAI Agents SDK whose tools come from an MCP server over stdio, trained.

pip install openai-agents 'mini-agentic-rl[recipes]'
python examples/agents/train_mcp_openai_agents.py --steps 15
"""

from __future__ import annotations

import sys

from agents import Agent, AgentsException, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled
from agents.mcp import MCPServerStdio
from common import INSTRUCTIONS, MAX_TURNS, parser, problems, report, running, training
from openai import AsyncOpenAI

from mini_agentic_rl import LLM, MiniGRPO, Trainer, rollout
from mini_agentic_rl.rewards import is_correct

set_tracing_disabled(True)  # the SDK would send its traces to OpenAI

CALCULATOR = {"command": sys.executable, "args": ["-m", "mini_agentic_rl.tools.mcp_calculator"]}


def make_server() -> MCPServerStdio:
    return MCPServerStdio(CALCULATOR, cache_tools_list=True, client_session_timeout_seconds=60)


def make_agent(llm: LLM, client: AsyncOpenAI, server: MCPServerStdio) -> Agent:
    return Agent(
        name="solver",
        instructions=INSTRUCTIONS,
        mcp_servers=[server],
        model=OpenAIChatCompletionsModel(llm.model, client),
        model_settings=ModelSettings(**llm.sampling_parameters),
    )


@rollout
async def solve(task, llm: LLM) -> float:
    """One rollout, with a server of its own: the reward is 1 for the right answer."""
    async with make_server() as server, AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
        try:
            result = await Runner.run(make_agent(llm, client, server), task["question"], max_turns=MAX_TURNS)
        except AgentsException:  # too many turns, or a call of a tool that there is not
            return 0.0
    return float(is_correct(str(result.final_output), task["answer"]))


def main() -> None:
    arguments = parser(__doc__)
    arguments.set_defaults(concurrency=8)
    options = arguments.parse_args()
    trainer = Trainer(algorithm=MiniGRPO(options.model, **training(options)), **running(options))
    trainer.fit(solve, problems(options, "train"), val_dataset=problems(options, "test"))
    report(trainer)


if __name__ == "__main__":
    main()
