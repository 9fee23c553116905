"""The program that plays a seat of an environment of `verifiers` from the calling process.

The programs of `verifiers` start a Python process for every rollout; here a rollout is a few coroutines. Model calls go
to the endpoint that `verifiers` gives, so that its limits, stops, rubrics and traces see them.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from functools import cache
from typing import Any

import verifiers.v1 as vf
from openai import APIStatusError
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp

from mini_agentic_rl.environments import Endpoint, Environment, load_environment, shared_client

from .tasks import REWARDS, WorldData


class ConversationProgram(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]  # without types where it is not installed
    """Plays a task of this package as its agent does, and any other in a conversation until an answer calls no tool."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Run to the end of a segment; a refused model call ends it with status 1, `verifiers` records the reason."""
        try:
            if isinstance(data, WorldData):
                outcome = await _world(data.world).rollout(data.row, Endpoint(endpoint, ctx.model, secret))
                trace.info[REWARDS] = dict(outcome.rewards)
            else:
                await self._talk(ctx, endpoint, secret, mcp_urls, data)
        except APIStatusError as error:
            return vf.ProgramResult(exit_code=1, stdout="", stderr=str(error))
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")

    async def _talk(self, ctx: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any) -> None:
        messages = self._opening(data)
        client = shared_client(endpoint, secret)
        async with AsyncExitStack() as stack:
            servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
            tools, dispatch, connections = await connect_mcp({"mcpServers": servers}, stack)
            offered: dict[str, Any] = {"tools": tools} if tools else {}
            while True:
                completion = await client.chat.completions.create(model=ctx.model, messages=messages, **offered)
                reply = completion.choices[0].message
                messages.append(reply.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
                if not reply.tool_calls:
                    return
                for call in reply.tool_calls:
                    content = await _called(call, dispatch, connections)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

    def _opening(self, data: Any) -> list[Any]:
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            return [*messages, {"role": "user", "content": prompt}]
        return [*messages, *(message_to_wire(message) for message in prompt or [])]


async def _called(call: Any, dispatch: dict[str, tuple[str, str]], servers: Any) -> Any:
    """Return the result of a tool call; an invalid call returns an error for the model."""
    name = call.function.name
    if name not in dispatch:
        return f"error: there is no tool {name!r}"
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except json.JSONDecodeError as error:
        return f"error: the arguments are no JSON: {error}"
    if not isinstance(arguments, dict):
        return f"error: the arguments must be a JSON object, not {type(arguments).__name__}"
    return await call_mcp(servers, dispatch, name, arguments)


@cache
def _world(spec: str) -> Environment:
    return load_environment(spec)
