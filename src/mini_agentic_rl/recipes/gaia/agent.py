"""The agent for the rows of `load_gaia`: it calls tools until it gives its final answer."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from ...emitter import emit_reward
from ...environments import Message, converse, endpoint_of, find_llm
from ...litagent import LitAgent
from ...tools import CALCULATOR_TOOL, calculate
from ...types import NamedResources, Rollout
from .tasks import MARKER, final_answer, is_right

MAX_RESULT = 8000
"""Characters of a tool's result that are shown to the model."""


@dataclass(frozen=True)
class FunctionTool:
    """A function that the model may call.

    `run` gets the model's arguments, of which only the required names are checked, and returns the result as text or as
    an awaitable of it. It is called in a thread. The message of a ValueError is shown to the model.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object."""
    run: Callable[[Mapping[str, Any]], str | Awaitable[str]]

    @property
    def schema(self) -> dict[str, Any]:
        """Return the OpenAI definition of the tool."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


class Toolbox:
    """Several tools by name.

    Raises:
        ValueError: two have the same name.
    """

    def __init__(self, tools: Sequence[FunctionTool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) < len(tools):
            raise ValueError(f"several tools have the same name, among {sorted(tool.name for tool in tools)}")
        self.schemas = [tool.schema for tool in tools]

    async def use(self, name: str, arguments: str) -> str:
        """Return the result of a call for the model, or "error: …" for an invalid call.

        `arguments` is the model's JSON text. Exceptions of a tool other than ValueError are raised to the caller.
        """
        tool = self._tools.get(name)
        if tool is None:
            return f"error: no tool named {name[:40]}; use {', '.join(self._tools)}"
        try:
            values = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return "error: arguments are not valid JSON"
        if not isinstance(values, dict):
            return "error: arguments must be a JSON object"
        missing = [wanted for wanted in tool.parameters.get("required", ()) if wanted not in values]
        if missing:
            return f"error: the argument {missing[0]} is missing"
        try:
            result = await asyncio.to_thread(tool.run, values)
            text = str(await result if inspect.isawaitable(result) else result)
        except ValueError as error:
            return f"error: {error}"
        if len(text) > MAX_RESULT:
            text = f"{text[:MAX_RESULT]}\n[{len(text) - MAX_RESULT} characters left out]"
        return text


def calculator_tool() -> FunctionTool:
    """Return the calculator of the math agent."""
    function = CALCULATOR_TOOL["function"]
    return FunctionTool(
        function["name"],
        function["description"],
        function["parameters"],
        lambda arguments: calculate(str(arguments["expression"])),
    )


def web_search_tool(search: Callable[[str], str | Awaitable[str]]) -> FunctionTool:
    """Return a tool of any search function, sync or async; no search engine comes with this package."""
    return FunctionTool(
        "web_search",
        "Search the web. Gives the most relevant passages with their addresses.",
        {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        lambda arguments: search(str(arguments["query"])),
    )


PAGE = 6000
"""Characters of a file per call."""
MAX_FILE_BYTES: Final = 20_000_000
"""Size of a file above which it is not read."""


def read_file_tool(path: str | Path, name: str) -> FunctionTool:
    """Return a tool that reads one text file, page by page.

    Args:
        path: path of the file.
        name: name of the file in the question.
    """
    file = Path(path)

    @cache
    def text() -> str:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{name} is longer than {MAX_FILE_BYTES} bytes")
        try:
            return file.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} is not a text file; {file.suffix or 'such'} files cannot be read") from error

    def run(arguments: Mapping[str, Any]) -> str:
        offset = arguments.get("offset", 0)
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ValueError("offset must be a number of characters, 0 or more")
        content = text()
        if offset and offset >= len(content):
            raise ValueError(f"the file has {len(content)} characters")
        end = offset + PAGE
        left = len(content) - end
        more = f"\n[{left} more characters; go on with offset {end}]" if left > 0 else ""
        return content[offset:end] + more

    return FunctionTool(
        "read_file",
        f"Read the attached file {name}. Long files come in pages: give the offset that the page before names.",
        {"type": "object", "properties": {"offset": {"type": "integer", "minimum": 0}}, "required": []},
        run,
    )


SYSTEM_PROMPT = (
    "Answer the question. Use the tools as often as you need. When you know the answer, end with one line "
    f'"{MARKER} …": a number (digits only; no unit and no thousands separator unless the question asks for it), as few '
    "words as possible (no abbreviation, no article), or a list of these with commas between them."
)


class GaiaAgent(LitAgent[Any]):
    """Answers GAIA's questions; the reward is 1 for the right final answer by the benchmark's score, else 0.

    It has a calculator, and `read_file` for a question with a text file. Many questions need a web search: add one with
    `tools=[web_search_tool(search)]`, and tools for other kinds of files in the same way.

    Each rollout emits its reward, `answered` (1 if there was a final answer) and `turns`. `rollout.output` is the
    answer, or None.
    """

    def __init__(
        self, *, tools: Sequence[FunctionTool] = (), max_turns: int = 12, system_prompt: str = SYSTEM_PROMPT
    ) -> None:
        """`tools` are added to the local ones; `max_turns` limits the model calls of a rollout.

        Raises:
            ValueError: `max_turns` is below 1, or two tools have the same name.
        """
        super().__init__()
        if max_turns < 1:
            raise ValueError(f"max_turns must be 1 or more, not {max_turns}")
        self.tools = (calculator_tool(), *tools)
        self.max_turns = max_turns
        self.system_prompt = system_prompt
        Toolbox(self.tools)

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> None:
        """Answer one question.

        Raises:
            ValueError: the resources hold no LLM, or several and none named "llm".
            OSError: the attached file cannot be read.
            openai.OpenAIError: the endpoint refused a call or could not be reached; a conversation that has outgrown
                the model's context has no answer instead.
        """
        question = str(task["question"])
        toolbox = Toolbox(self.tools)
        if task.get("file"):
            question += f"\n\nAttached file: {task['file_name']}"
            toolbox = Toolbox([*self.tools, read_file_tool(task["file"], task["file_name"])])

        async def follow(reply: Message) -> list[Message]:
            return [
                {
                    "role": "tool",
                    "tool_call_id": call["id"],
                    "content": await toolbox.use(call["function"]["name"], call["function"]["arguments"]),
                }
                for call in reply.get("tool_calls", ())
            ]

        messages: list[Message] = [
            {"role": "system", "content": self.system_prompt},
            {"role": "user", "content": question},
        ]
        endpoint = endpoint_of(find_llm(resources), rollout)
        turns, _ = await converse(endpoint, messages, follow, tools=toolbox.schemas, max_turns=self.max_turns)
        last = messages[-1]
        answered = last["role"] == "assistant" and not last.get("tool_calls")
        answer = final_answer(last.get("content") or "") if answered else None
        rollout.output = answer
        rewards = {"reward": float(is_right(answer, task["answer"])), "answered": float(answer is not None)}
        emit_reward({**rewards, "turns": float(turns)}, primary_key="reward", final=True)
