"""The agent that a trainer runs on the rows of `load_gaia`: it calls tools until it gives its final answer."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from openai import BadRequestError
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

from ...emitter import emit_reward
from ...environments import find_llm, outgrew_context, rollout_client
from ...errors import MissingPackageError
from ...litagent import LitAgent
from ...processes import DeadlineProcess, EndedError, LateError
from ...tools import CALCULATOR_TOOL, calculate
from ...types import NamedResources, Rollout
from .tasks import MARKER, final_answer, is_right

# Tools as functions: what the model is told of them, and how its calls are answered.
#
# No search engine comes with this package: `web_search_tool` makes a tool of any function that takes a query and
# returns text, and `GaiaAgent(tools=[…])` takes it along with the local ones.


MAX_RESULT = 8000
"""Characters of a tool's result that the model gets to read."""


@dataclass(frozen=True)
class FunctionTool:
    """A function that the model may call.

    `run` gets the arguments as the model gave them, checked against nothing but the required names; what it returns is
    the result, and a ValueError that it raises is told to the model. It is called in a thread, and may give an
    awaitable instead of the text.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object."""
    run: Callable[[Mapping[str, Any]], str | Awaitable[str]]

    @property
    def schema(self) -> dict[str, Any]:
        """Return the tool as an OpenAI function."""
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
        """Return the result of a call, for the model to read; "error: …" where the call makes no sense.

        `arguments` is the JSON text that the model produced. What a tool raises other than ValueError is its fault, not
        the model's, and goes on to the caller.
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
        return (
            text if len(text) <= MAX_RESULT else f"{text[:MAX_RESULT]}\n[{len(text) - MAX_RESULT} characters left out]"
        )


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
    """Return a tool that hands the model's query to `search`, sync or async, and its text back to the model."""

    return FunctionTool(
        "web_search",
        "Search the web. Gives the most relevant passages with their addresses.",
        {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        lambda arguments: search(str(arguments["query"])),
    )


# Reading the file that comes with a question, page by page, in a process that can do no harm (see `file_worker`).


PAGE = 6000
"""Characters of a file that one call shows."""

READ_SECONDS: Final = 20.0
"""Seconds that reading a file may take."""


def read_file_tool(path: str | Path, name: str) -> FunctionTool:
    """Return a tool that shows one file, page by page, and no other file.

    Args:
        path: where the file is.
        name: what the question calls it.
    """
    file = AttachedFile(Path(path))

    def run(arguments: Mapping[str, Any]) -> str:
        offset = arguments.get("offset", 0)
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            raise ValueError("offset must be a number of characters, 0 or more")
        text, length = file.page(offset)
        end = offset + PAGE
        if offset and offset >= length:
            raise ValueError(f"the file has {length} characters")
        rest = f"\n[{length - end} more characters; go on with offset {end}]" if length > end else ""
        return text + rest

    return FunctionTool(
        "read_file",
        f"Read the attached file {name}. Long files come in pages: give the offset that the page before names.",
        {"type": "object", "properties": {"offset": {"type": "integer", "minimum": 0}}, "required": []},
        run,
    )


class AttachedFile:
    """A file, read by a process that starts at the first question and ends with this object."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = DeadlineProcess(f"{__package__}.file_worker", str(path.absolute()))

    def page(self, offset: int) -> tuple[str, int]:
        """Return the text from a character on, and the length of the whole. Blocks.

        Raises:
            ValueError: the file cannot be read, or takes too much; the message is for the model to read.
            MissingPackageError: a spreadsheet, and openpyxl is not installed (extra "gaia").
            OSError: there is no such file, or it may not be read.
        """
        if self._path.suffix.lower() in (".xlsx", ".xlsm"):
            try:
                import openpyxl  # noqa: F401  # its own process needs it
            except ImportError as error:
                raise MissingPackageError("reading .xlsx files", "openpyxl", extra="recipes") from error
        try:
            found = self._process.ask([offset, PAGE], READ_SECONDS)
        except LateError:
            raise ValueError(f"{self._path.name} takes longer than {READ_SECONDS:g} s to read") from None
        except EndedError:
            raise ValueError(f"{self._path.name} takes too much to read") from None
        if "failure" in found:
            raise OSError(*found["failure"], str(self._path))
        if "error" in found:
            raise ValueError(found["error"])
        return found["text"], found["length"]


SYSTEM_PROMPT = (
    "Answer the question. Use the tools as often as you need. When you know the answer, end with one line "
    f'"{MARKER} …": a number (digits only; no unit and no thousands separator unless the question asks for it), as few '
    "words as possible (no abbreviation, no article), or a list of these with commas between them."
)


class GaiaAgent(LitAgent[Any]):
    """Answers GAIA's questions; the reward is 1 for the right final answer by the benchmark's score, else 0.

    It has a calculator, and `read_file` where the question comes with a file. There is no web search in this package,
    which many questions need: plug one in as `tools=[web_search_tool(search)]`.

    Each rollout emits its reward, `answered` (1 where there was a final answer) and `turns`. `rollout.output` is the
    answer, or None.
    """

    def __init__(
        self, *, tools: Sequence[FunctionTool] = (), max_turns: int = 12, system_prompt: str = SYSTEM_PROMPT
    ) -> None:
        """`tools` come on top of the local ones; `max_turns` is the most model calls of a rollout.

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
            MissingPackageError: the file is a spreadsheet, and openpyxl is not installed.
            openai.OpenAIError: the endpoint refused a call or could not be reached; a conversation that has outgrown
                the model's context has no answer instead.
        """
        llm = find_llm(resources)
        client = rollout_client(llm, rollout)
        question = str(task["question"])
        toolbox = Toolbox(self.tools)
        if task.get("file"):
            question += f"\n\nAttached file: {task['file_name']}"
            toolbox = Toolbox([*self.tools, read_file_tool(task["file"], task["file_name"])])
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": self.system_prompt},
            {"role": "user", "content": question},
        ]
        answer, turns = None, 0
        for turn in range(self.max_turns):
            try:
                completion = await client.chat.completions.create(
                    model=llm.model,
                    messages=cast(list[ChatCompletionMessageParam], messages),
                    tools=cast(list[ChatCompletionFunctionToolParam], toolbox.schemas),
                    **llm.sampling_parameters,
                )
            except BadRequestError as error:
                if turn == 0 or not outgrew_context(error):
                    raise
                break
            turns += 1
            reply = completion.choices[0].message
            messages.append(reply.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            if not reply.tool_calls:
                answer = final_answer(reply.content or "")
                break
            for call in reply.tool_calls:
                if call.type == "function":  # the only kind that was offered
                    result = await toolbox.use(call.function.name, call.function.arguments)
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        rollout.output = answer
        rewards = {"reward": float(is_right(answer, task["answer"])), "answered": float(answer is not None)}
        emit_reward({**rewards, "turns": float(turns)}, primary_key="reward", final=True)
