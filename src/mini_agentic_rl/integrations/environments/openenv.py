"""Environments behind an OpenEnv server (openenv-core 0.3), reset and stepped over its WebSocket by its own client.

An observation is the next user message. The model's answer becomes the action: if actions have one required field, the
text is its value; if they have several, the answer is a JSON object, whose schema is in the first message. Tools of a
tool server are offered to the model as tools of the conversation. The reward is the sum over the steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

from ...datasets import Row
from ...environments import Endpoint, Message, Outcome, converse
from ...errors import MissingPackageError, UserError
from .gymnasium import seeded_tasks

MAX_TURNS: Final = 16
_TOOL_ACTIONS: Final = ("Action", "CallToolAction", "ListToolsAction")
"""Titles of the action schemas of tool servers."""
_ANSWER_SECONDS: Final = 3600.0
"""Longer than any rollout: the rollout's time limit ends a hanging step."""
_LOOK_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.25
_LONGEST_PAUSE: Final = 4.0


class OpenEnvEnvironment:
    """Opens one session of the server per rollout; the rollout waits while the server is full.

    Args:
        url: address of the server, as http://localhost:8000.
        max_turns: most model calls of a rollout.
        system: system message before the first observation.
        reset: further arguments of every reset.

    Raises:
        MissingPackageError: openenv-core is not installed.
        UserError: the server does not answer, or returns no schema of its actions.
    """

    def __init__(
        self, url: str, *, max_turns: int = MAX_TURNS, system: str = "", reset: Mapping[str, Any] | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self.max_turns = max_turns
        self.system = system
        self.reset = dict(reset or {})
        _client_kind()
        self.action = _action_schema(self.url)
        required = self.action.get("required", [])
        self._field = str(required[0]) if len(required) == 1 else None
        """The only required field of an action; None if there are several, or none."""

    def tasks(self, split: str, size: int, seed: int = 0) -> Sequence[Row]:
        """Return tasks with a seed each; splits share no seed.

        Raises:
            DatasetError: an unknown split.
        """
        return seeded_tasks(self.url, split, size, seed)

    async def rollout(self, task: Mapping[str, Any], endpoint: Endpoint) -> Outcome:
        """Play until the environment is done, or for `max_turns` model calls.

        Raises:
            RuntimeError: the server reports an error of its environment.
            ValueError: no step gave a reward.
        """
        rewards: list[float] = []
        async with self._session({"seed": task["seed"], **self.reset}) as (session, first):
            tools = await self._tools(session)

            async def step(action: Mapping[str, Any]) -> Any:
                result = await session.step(dict(action))
                if result.reward is not None:
                    rewards.append(float(result.reward))
                return result

            async def follow(reply: Message) -> Sequence[Message]:
                if tools:
                    return await _called(reply, step)
                action = self._action_of(str(reply.get("content") or ""))
                if action is None:
                    return [_user(f"Answer with a JSON object of this schema: {json.dumps(self.action)}")]
                try:
                    result = await step(action)
                except RuntimeError as error:
                    if "VALIDATION_ERROR" not in str(error):
                        raise
                    return [_user(f"That action is not valid: {error}")]
                return [] if result.done else [_user(as_text(result.observation))]

            system = [{"role": "system", "content": self.system}] if self.system else []
            question = as_text(first.observation)
            if not tools and self._field is None:
                question += f"\n\nAnswer with a JSON object of this schema: {json.dumps(self.action)}"
            messages = [*system, _user(question)]
            turns, _ = await converse(endpoint, messages, follow, tools=tools, max_turns=self.max_turns)
        if not rewards:
            raise ValueError(f"no step of {self.url} gave a reward")
        return Outcome({"reward": sum(rewards), "turns": float(turns)}, messages[-1].get("content"))

    @asynccontextmanager
    async def _session(self, arguments: Mapping[str, Any]) -> AsyncIterator[tuple[Any, Any]]:
        """Yield a session after its reset, and the first observation; waits while the server is full."""
        pause = _PAUSE_SECONDS
        while True:
            session = _client_kind()(self.url, message_timeout_s=_ANSWER_SECONDS)
            try:
                await session.connect()
                first = await session.reset(**arguments)
            except Exception as error:
                with contextlib.suppress(Exception):
                    await session.close()
                # A full server sends an error and closes, and the close may be noticed first.
                if "CAPACITY_REACHED" not in str(error) and type(error).__name__ != "ConnectionClosedOK":
                    raise
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                continue
            try:
                yield session, first
            finally:
                with contextlib.suppress(Exception):
                    await session.close()
            return

    async def _tools(self, session: Any) -> list[dict[str, Any]]:
        """Return the tools of a tool server in the form of the chat API; none for other servers."""
        if self.action.get("title") not in _TOOL_ACTIONS:
            return []
        listed = await session.step({"type": "list_tools"})
        return [
            {
                "type": "function",
                "function": {
                    "name": tool["name"],
                    "description": tool.get("description", ""),
                    "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
                },
            }
            for tool in listed.observation["tools"]
        ]

    def _action_of(self, text: str) -> dict[str, Any] | None:
        """Parse an answer as an action; None if it is none."""
        field = self._field
        bare = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
        try:
            parsed = json.loads(bare)
        except (ValueError, RecursionError):
            parsed = None
        if isinstance(parsed, dict) and (field is None or field in parsed):
            return parsed
        if field is None:
            return None
        kind = self.action.get("properties", {}).get(field, {}).get("type")
        return {field: text.strip() if kind in (None, "string") or parsed is None else parsed}


async def _called(reply: Message, step: Any) -> list[Message]:
    """Return the results of an answer's tool calls; an empty list, if it makes none, ends the episode."""
    follows: list[Message] = []
    is_over = False
    for call in reply.get("tool_calls") or []:
        name = call["function"]["name"]
        try:
            arguments = json.loads(call["function"]["arguments"] or "{}")
            if not isinstance(arguments, dict):
                raise ValueError("the arguments are no JSON object")
        except ValueError as error:
            text = f"error: {error}"
        else:
            result = await step({"type": "call_tool", "tool_name": name, "arguments": arguments})
            is_over = is_over or result.done
            text = _tool_text(result.observation)
        follows.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    return [] if is_over else follows


def as_text(observed: Any) -> str:
    """Return an observation as text: its only text field, else all of it as JSON."""
    fields = observed if isinstance(observed, Mapping) else {"observation": observed}
    filled = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
    texts = [value for value in filled.values() if isinstance(value, str)]
    return texts[0] if len(texts) == 1 and len(filled) == 1 else json.dumps(filled, ensure_ascii=False, default=str)


def _tool_text(observed: Mapping[str, Any]) -> str:
    if observed.get("error"):
        return f"error: {as_text(observed['error'])}"
    result = observed.get("result")
    content = result.get("content") if isinstance(result, Mapping) else None
    if isinstance(content, list) and all(isinstance(part, Mapping) and "text" in part for part in content):
        return "\n".join(str(part["text"]) for part in content)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _action_schema(url: str) -> dict[str, Any]:
    try:
        answer = httpx.get(f"{url}/schema", timeout=_LOOK_SECONDS, trust_env=False)
        answer.raise_for_status()
        schema: dict[str, Any] = answer.json()["action"]
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"no OpenEnv server answers at {url} ({type(error).__name__}: {error}): start it, or give its address as "
            "openenv:http://host:port",
            setting="env",
        ) from error
    return schema


def _client_kind() -> Any:
    try:
        from openenv.core import GenericEnvClient
    except ImportError as error:
        raise MissingPackageError("'openenv:…'", "openenv-core", extra="environments", setting="env") from error
    return GenericEnvClient
