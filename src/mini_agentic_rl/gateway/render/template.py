"""The chat template of a tokenizer: its abilities, which are found by rendering small probes, and rendering."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ..tool_formats import COMPACT, FORMATS, Tool, ToolFormat, ToolFormatName, XmlFormat, split_tool_calls
from .decoding import KNOWN_TAGS, Decoder, ThinkingName, Tokenizer, chat_template_of, special_tokens
from .messages import squashed, without_thought

logger = logging.getLogger(__name__)

_MARK = "m4rk"
_RESULT = "r3sult"
_NEXT = "n3xt"
_USER = {"role": "user", "content": "hi"}
_SHORT_ID = "a1b2c3d4e"
"""Nine letters and digits: some templates accept no other call ids."""
_LONG_ID = "call_0123456789abcdef01234567"
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": "probe",
        "description": _MARK,
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]},
    },
}


def _call(id_: str = _SHORT_ID, **options: Any) -> dict[str, Any]:
    function = {"name": "probe", "arguments": {"x": 1}} | options
    return {"id": id_, "type": "function", "function": function}


def _calling(*calls: Mapping[str, Any], content: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def _result(id_: str = _SHORT_ID) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id_, "name": "probe", "content": _RESULT}


class ChatTemplate:
    """The chat template of a tokenizer; ChatML if it has none.

    Args:
        tokenizer: the tokenizer.
        tool_format: how tool calls are written. "auto" takes the format of the template, or else Hermes; "compact"
            takes the format with the fewest tokens instead of Hermes.
        thinking: the policy; "off" ignores think tags.
        settings: further variables for the template, such as `enable_thinking`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        tool_format: ToolFormatName,
        thinking: ThinkingName,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._settings = dict(settings or {})
        self.source = chat_template_of(tokenizer)
        """The Jinja text."""
        places = (self.source, tokenizer.get_added_vocab())
        tags = next((tags for tags in KNOWN_TAGS if any(tags.close in place for place in places)), None)
        default = None if thinking == "auto" else KNOWN_TAGS[0]
        self.tags = None if thinking == "off" else tags or default
        """The think tags in the template or among the added tokens."""
        self.system_role = _MARK in self.try_([{"role": "system", "content": _MARK}, _USER])
        """True if there is a system role."""
        systems = [{"role": "system", "content": f"{number}-{_MARK}"} for number in range(3)]
        rendered = self.try_([*systems[:2], _USER, {"role": "assistant", "content": "a"}, systems[2], _USER])
        self.system_first = not all(turn["content"] in rendered for turn in systems)
        """True if system text must be one turn, the first."""
        self.alternating = _MARK not in self.try_([_USER, {"role": "user", "content": _MARK}])
        """True if user and assistant must alternate."""
        self.tool_role = self._has_tool_role()
        """True if there is a role for tool results."""
        self.wraps_results = self.tool_role and self._wraps_results()
        """True if it writes more around a result than a turn with the name of the role."""
        self.tool_format, self.native_tools, self.native_calls = self._choose_format(tool_format)
        """The format of calls, and whether the template itself renders tools and results, and calls."""
        self.several_calls = self._reads_back(_calling(_call(), _call("z9y8x7w6v")), 2)
        """True if it renders all calls of an answer."""
        self.content_beside_calls = self._reads_back(_calling(_call(), content=_MARK), 1)
        """True if it renders the content of an answer with calls."""
        self.call_lead = self._call_lead()
        """Text between the content of an answer and its calls."""
        answered = [_USER, {"role": "assistant", "content": "a"}, _result()]
        self.calls_as_text = _RESULT in self.try_([*answered, {"role": "assistant", "content": "b"}], [_PROBE_TOOL])
        """True if a tool's result may follow an answer whose calls are part of its content."""
        called = [_USER, _calling(_call()), _result()] if self.native_calls else answered
        self.user_after_result = _NEXT in self.try_([*called, {"role": "user", "content": _NEXT}], [_PROBE_TOOL])
        """True if a user turn may follow a tool's result."""
        self.takes_any_arguments = "r4w" in self._answer_text(_calling(_call(arguments="r4w")))
        """True if it renders arguments that are not a JSON object."""
        long = [_USER, _calling(_call(_LONG_ID)), _result(_LONG_ID)]
        short = [_USER, _calling(_call()), _result()]
        self.short_ids = not self.try_(long, [_PROBE_TOOL]) and bool(self.try_(short, [_PROBE_TOOL]))
        """True if call ids must be nine letters and digits."""
        before, prompt = self.try_([_USER]), self.try_([_USER], add_generation_prompt=True)
        self.generation_prompt = prompt[len(before) :] if prompt.startswith(before) else ""
        """Text that opens an answer."""
        self.thought_begun = self.tags is not None and (
            self.generation_prompt.rfind(self.tags.open) > self.generation_prompt.rfind(self.tags.close)
        )
        """True if the generation prompt opens a thought, so that answers have only the closing tag."""
        self.thought_field = self._reads_thought_field()
        """True if the template reads a thought from `reasoning_content`; otherwise it is put into the content."""
        self.lead = self._lead()
        """Text between the generation prompt and the answer; usually empty."""
        self.lead_of_calls = self._lead_of_calls()
        """The same before an answer that consists of calls."""
        self.end_text, self.end_id = self._end_of_turn()
        """The text from the end of an answer through the next special token, and the id of that token."""

    @property
    def turns(self) -> str:
        """A rendered conversation, which contains all text that the template writes around content."""
        answered = [_USER, {"role": "assistant", "content": _MARK}, _USER]
        whole = [{"role": "system", "content": _MARK}, *answered]
        return self.try_(whole, None, True) + self.try_(answered, None, True)

    @property
    def thinks(self) -> bool:
        """True if the template uses or opens thoughts."""
        return self.thought_begun or (self.tags is not None and self.tags.close in self.source)

    def apply(
        self, turns: Sequence[Mapping[str, Any]], tools: Sequence[Tool] | None, add_generation_prompt: bool
    ) -> str:
        """Render a conversation; a chat template may raise anything."""
        text = self._tokenizer.apply_chat_template(
            [dict(turn) for turn in turns],
            tools=list(tools) if tools else None,
            chat_template=self.source,
            add_generation_prompt=add_generation_prompt,
            tokenize=False,
            **self._settings,
        )
        return str(text)

    def try_(
        self,
        turns: Sequence[Mapping[str, Any]],
        tools: Sequence[Tool] | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        """Render a probe; return an empty text if the template refuses it."""
        try:
            return self.apply(turns, tools, add_generation_prompt)
        except Exception:  # chat templates may raise anything
            return ""

    def with_thought(self, turn: dict[str, Any]) -> dict[str, Any]:
        """Return the turn with its `reasoning_content`, if any, where the template reads it."""
        thought = turn.get("reasoning_content")
        if thought and self.thought_field:
            return turn
        plain = without_thought(turn)
        if not thought or self.tags is None:
            return plain
        return {**plain, "content": f"{self.tags.open}\n{thought}\n{self.tags.close}\n\n{plain['content']}"}

    def _has_tool_role(self) -> bool:
        start = [_USER, {"role": "assistant", "content": "a"}]
        as_tool = self.try_([*start, {**_result(), "content": _MARK}])
        as_assistant = self.try_([*start, {"role": "assistant", "content": _MARK}])
        return _MARK in as_tool and as_tool != as_assistant

    def _wraps_results(self) -> bool:
        start = [_USER, {"role": "assistant", "content": "a"}]
        as_user, as_tool = (self.try_([*start, turn]) for turn in ({"role": "user", "content": _RESULT}, _result()))
        return as_user.lower().replace("tool", "user") != as_tool.lower().replace("tool", "user")

    def _choose_format(self, name: ToolFormatName) -> tuple[ToolFormat, bool, bool]:
        """Return the tool format, whether the template shows tools and results, and whether it writes the calls."""
        allowed = [tool_format for tool_format in FORMATS if name in ("auto", "compact", tool_format.name)]
        fallback = next(tool_format for tool_format in allowed if name != "compact" or tool_format.name == COMPACT)
        shows_tools = _MARK in self.try_([_USER], [_PROBE_TOOL])
        shows_results = _RESULT in self.try_([_USER, _calling(_call()), _result()], [_PROBE_TOOL])
        text = self._answer_text(_calling(_call()))
        native_calls = shows_tools and shows_results and "probe" in text
        if "probe" not in text:  # DeepSeek takes arguments as JSON text; Kimi writes the id of a call, not its name
            others = (_call(arguments='{"x": 1}'), _call("functions.probe:0"))
            texts = [self._answer_text(_calling(call)) for call in others]
            text = next((other for other in texts if "probe" in other), text)
        written = [tool_format for tool_format in allowed if self._writes(tool_format, text)]
        if native_calls and name in ("auto", "compact", "xml"):
            tagged = XmlFormat.read_off(self._text_of_calls, special_tokens(self._tokenizer))
            written += [tagged] if tagged is not None and self._writes(tagged, text) else []
        if shows_tools and shows_results and "probe" not in text:  # calls are part of the content, as in LFM2
            vocabulary = self._tokenizer.get_added_vocab()
            written = [
                tool_format for tool_format in allowed if tool_format.markers and tool_format.markers[0] in vocabulary
            ]
        if written:  # bare JSON also occurs inside other formats: the longest prefix is the most specific
            best = max(written, key=lambda tool_format: len(tool_format.forced_prefix("probe")))
            answered = [_USER, {"role": "assistant", "content": "a"}, _result()]
            takes_results = native_calls or _RESULT in self.try_(answered, [_PROBE_TOOL])
            return best, shows_tools and takes_results, native_calls
        if name in ("auto", "compact") and (shows_tools or "probe" in text):
            _warn_of_unknown_format(self._tokenizer.name_or_path, text, fallback.name)
        return fallback, False, False

    def _text_of_calls(self, arguments: Sequence[Mapping[str, Any]]) -> str:
        """Return the rendered calls of the probe with these arguments, without the text around them."""
        answer = _calling(*(_call(arguments=given) for given in arguments), content=_MARK)
        ended = self.try_([_USER, {"role": "assistant", "content": _MARK}]).rpartition(_MARK)[2]
        text = self._answer_text(answer)
        if _MARK not in text:
            text = _MARK + self._answer_text({**answer, "content": ""}).removeprefix(self._lead())
        return text.partition(_MARK)[2].removesuffix(ended).strip()

    def _writes(self, tool_format: ToolFormat, text: str) -> bool:
        """Return True if a text is the probe's call in this format: it has its prefix and is read by its scanner."""
        visible = self._visible(text, tool_format)
        calls = split_tool_calls(tool_format, visible, [_PROBE_TOOL])[1]
        begins = squashed(tool_format.forced_prefix("probe")) in squashed(visible)
        return begins and [(call.name, call.arguments) for call in calls] == [("probe", '{"x": 1}')]

    def _reads_back(self, answer: Mapping[str, Any], count: int) -> bool:
        if not self.native_calls:
            return not self.native_tools
        text = self._visible(self._answer_text(answer), self.tool_format)
        calls = split_tool_calls(self.tool_format, text)[1]
        return len(calls) == count and answer["content"] in text

    def _call_lead(self) -> str:
        text = self._answer_text(_calling(_call(), content=_MARK)) if self.native_calls else ""
        content, call = text.find(_MARK), text.find(self.tool_format.forced_prefix("probe"))
        return text[content + len(_MARK) : call] if 0 <= content < call else "\n"

    def _lead_of_calls(self) -> str:
        if not self.native_calls:
            return self.lead
        text = self._answer_text(_calling(_call()))
        return text[: max(0, text.find(self.tool_format.forced_prefix("probe")))]

    def _visible(self, text: str, tool_format: ToolFormat) -> str:
        """Return the text as it would be decoded if it were sampled."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        return Decoder(self._tokenizer, tool_format.markers)(ids)

    def _answer_text(self, answer: Mapping[str, Any]) -> str:
        """Return the rendered answer."""
        whole = self.try_([_USER, answer], [_PROBE_TOOL])
        for prompted in (True, False):
            before = self.try_([_USER], [_PROBE_TOOL], prompted)
            if before and whole.startswith(before):
                return whole[len(before) :]
        return ""

    def _reads_thought_field(self) -> bool:
        """Return True if the template renders `reasoning_content` once between its tags."""
        if self.tags is None:
            return False
        text = self.try_([_USER, {"role": "assistant", "content": "a", "reasoning_content": _MARK}])
        return f"{self.tags.open}{_MARK}{self.tags.close}" in squashed(text) and text.count(self.tags.open) == 1

    def _lead(self) -> str:
        before = self.try_([_USER], add_generation_prompt=True)
        whole = self.try_([_USER, {"role": "assistant", "content": _MARK}])
        return whole[len(before) : whole.rfind(_MARK)] if _MARK in whole and whole.startswith(before) else ""

    def _end_of_turn(self) -> tuple[str, int | None]:
        text = self.try_([_USER, {"role": "assistant", "content": _MARK}])
        tail = text[text.rfind(_MARK) + len(_MARK) :] if _MARK in text else ""
        known = dict(self._tokenizer.get_added_vocab())
        if self._tokenizer.eos_token and self._tokenizer.eos_token_id is not None:
            known[self._tokenizer.eos_token] = self._tokenizer.eos_token_id
        ends = [(tail.find(token), -len(token), token) for token in known if token and token in tail]
        if not ends:
            return "", None
        position, _, token = min(ends)
        return tail[: position + len(token)], known[token]


@cache
def _warn_of_unknown_format(model: str, text: str, instead: str) -> None:
    """Warn once about a chat template whose calls cannot be read."""
    logger.warning(
        "%s: the chat template writes tool calls in an unknown format: %r. Tools are offered in the format %r instead, "
        "and calls in the format of the template stay text of the answer.",
        model or "the model",
        text,
        instead,
    )
