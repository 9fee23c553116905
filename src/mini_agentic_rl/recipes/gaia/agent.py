"""The agent that a trainer runs on the rows of `load_gaia`: it calls tools until it gives its final answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from openai import BadRequestError
from openai.types.chat import ChatCompletionFunctionToolParam, ChatCompletionMessageParam

from ...emitter import emit_reward
from ...environments import find_llm, outgrew_context, rollout_client
from ...litagent import LitAgent
from ...types import NamedResources, Rollout
from .files import read_file_tool
from .score import MARKER, final_answer, is_right
from .toolbox import FunctionTool, Toolbox, calculator_tool

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
