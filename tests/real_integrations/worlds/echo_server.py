"""Servers of OpenEnv with two environments: one that measures what it is sent, and one with a tool."""

from __future__ import annotations

import sys

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation


class EchoAction(Action):
    message: str


class EchoObservation(Observation):
    heard: str = ""


class EchoEnvironment(Environment):
    """Echoes three messages; the shorter one is, the more it earns."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._steps = 0

    def reset(self, seed=None, **more):
        self._steps = 0
        return EchoObservation(heard=f"say something, {seed}")

    def step(self, action, **more):
        if action.message == "explode":
            raise ValueError("the server's world fell over")
        self._steps += 1
        reward = None if action.message == "nothing" else 1.0 / (1.0 + len(action.message))
        return EchoObservation(heard=action.message, reward=reward, done=self._steps >= 3)

    @property
    def state(self):
        return State(step_count=self._steps)


class ToolEnvironment(MCPEnvironment):
    """Offers one tool, and pays for its right use."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("tools")

        @server.tool
        def double(number: int) -> int:
            """Double a number."""
            return 2 * number

        super().__init__(server)

    def reset(self, seed=None, **more):
        return EchoObservation(heard="double 21")

    async def step_async(self, action, **more):
        found = await super().step_async(action, **more)
        if isinstance(found, CallToolObservation):
            found.reward = float("42" in str(found.result))
        return found

    def _step_impl(self, action, **more):
        return EchoObservation(heard="?")

    @property
    def state(self):
        return State(step_count=0)


def main() -> None:
    kind, port, sessions = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    world, action, observation = {
        "echo": (EchoEnvironment, EchoAction, EchoObservation),
        "tools": (ToolEnvironment, CallToolAction, CallToolObservation),
    }[kind]
    app = create_fastapi_app(world, action, observation, max_concurrent_envs=sessions)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error")


if __name__ == "__main__":
    main()
