"""Conversations with tools, results and thoughts over chat templates like those of the main model families."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest

from mini_agentic_rl.gateway.completion.choice import Choice
from mini_agentic_rl.gateway.completion.remember import ConversationMemory
from mini_agentic_rl.gateway.render.messages import plain_messages
from mini_agentic_rl.gateway.render.renderer import ChatRenderer
from mini_agentic_rl.tokens import TokenDelta

from ..samples import CALCULATOR, QUESTION
from .families import FAMILIES

ATTEMPT = ("rollout", "attempt")
START = [{"role": "system", "content": "Be terse."}, *QUESTION]
TOOLS = [CALCULATOR]
THINKING = [name for name, family in FAMILIES.items() if family.thinks]


def call(expression):
    return {"id": "", "type": "function", "function": {"name": "calculate", "arguments": {"expression": expression}}}


ANSWERS = [
    {"role": "assistant", "content": "", "tool_calls": [call("12+30")], "reasoning_content": "use the tool"},
    {"role": "assistant", "content": "The answer is 42.", "reasoning_content": "it says 42"},
    {
        "role": "assistant",
        "content": "Let me calculate that.",
        "tool_calls": [call("1+1"), call("2+2")],
        "reasoning_content": "two calls",
    },
    {"role": "assistant", "content": "2 and 4.", "reasoning_content": "both came back"},
    {"role": "assistant", "content": "Yes.", "reasoning_content": "nothing to do"},
]
"""The answers of the model to five calls; the third and the fifth follow a new question."""


@cache
def renderer_of(name, thinking="auto"):
    tokenizer = FAMILIES[name].tokenizer()
    extra = tokenizer.convert_tokens_to_ids(list(FAMILIES[name].extra_eos))
    return ChatRenderer(tokenizer, thinking=thinking, extra_eos_ids=extra)


def answer_of(renderer, ids, tools=TOOLS):
    """The answer that is read from sampled ids."""
    reader = renderer.reader(tools)
    choice = Choice(0, renderer.decoder(True), end_ids=renderer.eos_ids, reader=reader, streamed=True)
    for token_id in ids:
        choice.take(TokenDelta((token_id,), (0.0,)))
    choice.finish("stop")
    return choice.message()


class Client:
    """An agent's side of a conversation: asks, takes the answer, sends the history back."""

    def __init__(self, name, *, thinking="auto", sends_thoughts=True):
        self.family = FAMILIES[name]
        self.renderer = renderer_of(name, thinking)
        self.memory = ConversationMemory(self.renderer)
        self.messages = list(START)
        self.sends_thoughts = sends_thoughts

    def ask(self, answer, tools=TOOLS):
        """One call: the prompt's ids, and all ids once `answer` has been sampled."""
        answer = answer if self.family.thinks else {k: v for k, v in answer.items() if k != "reasoning_content"}
        prompt = self.memory.prompt(ATTEMPT, plain_messages(self.messages), tools)
        output = [*self.renderer.encode_answer(answer), self.end_id(answer)]
        message = answer_of(self.renderer, output)
        assert essentials(message) == essentials(answer)
        self.memory.remember(ATTEMPT, prompt, prompt.ids, output, plain_messages([message])[0])
        self.messages.append(
            message if self.sends_thoughts else {k: v for k, v in message.items() if k != "reasoning_content"}
        )
        for entry in message.get("tool_calls", ()):
            self.messages.append({"role": "tool", "tool_call_id": entry["id"], "content": "42"})
        if not message.get("tool_calls"):
            self.messages.append({"role": "user", "content": "Sure?"})
        return list(prompt.ids), [*prompt.ids, *output]

    def end_id(self, answer):
        """The token that the model ends with: where turns have no end of their own, what begins the next turn."""
        if self.family.extra_eos:
            user, observation = self.renderer.tokenizer.convert_tokens_to_ids(list(self.family.extra_eos))
            return observation if answer.get("tool_calls") else user
        return self.renderer.end_of_turn_id

    def text(self, ids):
        return self.renderer.tokenizer.decode(ids, skip_special_tokens=False)


def essentials(message):
    """Content, calls and thought of a message."""
    calls = [one["function"] for one in plain_messages([message])[0].get("tool_calls", ())]
    return (message["content"] or "").strip(), calls, message.get("reasoning_content")


def squeezed(text):
    """The text without white space and without the ids of calls."""
    return re.sub(r',"id":"\w+"', "", re.sub(r"\s+", "", text))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_call_continues_token_by_token_or_forks_for_a_reason_that_is_counted(name):
    for sends_thoughts in (True, False) if FAMILIES[name].thinks else (True,):
        client = Client(name, sends_thoughts=sends_thoughts)
        family = client.family
        assert client.renderer.tool_format.name == family.tool_format
        assert client.renderer.thinking == ("fork" if family.thinks else "off")
        recorded: list[int] = []
        forks = []
        for number, answer in enumerate(ANSWERS):
            messages = list(client.messages)
            before = client.memory.prompt_counts()
            prompt, all_ids = client.ask(answer)
            after = client.memory.prompt_counts()
            changed = {kind for kind in after if after[kind] != before[kind]}
            if prompt[: len(recorded)] == recorded:
                assert changed == ({"continued"} if recorded else {"rendered"})
            else:
                assert changed == {"forked", "forked_template"}
                forks.append(number)
            recorded = all_ids
            if sends_thoughts:  # the text is what the template makes of the messages
                text, expected = client.text(prompt), client.text(client.renderer.render(messages, TOOLS))
                assert text == expected if family.exact else squeezed(text) == squeezed(expected)
        assert forks == list(family.forks)


@pytest.mark.parametrize("name", THINKING)
def test_kept_thinking_always_continues_and_dropped_thinking_never_reaches_a_later_prompt(name):
    for sends_thoughts in (True, False):
        client = Client(name, thinking="keep", sends_thoughts=sends_thoughts)
        recorded: list[int] = []
        for answer in ANSWERS:
            prompt, all_ids = client.ask(answer)
            assert prompt[: len(recorded)] == recorded
            recorded = all_ids
        assert client.memory.prompt_counts()["forked"] == 0
        assert all(answer["reasoning_content"] in client.text(prompt) for answer in ANSWERS[:-1])
    client = Client(name, thinking="drop")
    for number, answer in enumerate(ANSWERS):
        prompt, _ = client.ask(answer)
        assert not any(earlier["reasoning_content"] in client.text(prompt) for earlier in ANSWERS)
        assert client.memory.prompt_counts()["forked_thinking"] == number


def test_with_thinking_off_the_tags_are_text_of_the_answer():
    renderer = renderer_of("qwen 3", "off")
    assert renderer.reader([]) is None
    text = "<think>\nhm\n</think>\n\nYes."
    choice = Choice(0, renderer.decoder(False))
    choice.take(TokenDelta(tuple(renderer.encode(text)), (0.0,) * len(renderer.encode(text)), finish_reason="stop"))
    assert choice.message() == {"role": "assistant", "content": text}


SAMPLED = {
    "qwen 3": "<think>\nBoth.\n</think>\n\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "7", "days": 2}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome", "days": 3}}\n</tool_call>',
    "qwen 3.5": "Both.\n</think>\n\n"
    "<tool_call>\n<function=weather>\n<parameter=city>\n7\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>\n"
    "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm 4.5": "\n<think>Both.</think>"
    "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call>"
    "\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "kimi k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
    '{"city": "7", "days": 2}<|tool_call_end|><|tool_call_begin|>functions.weather:1<|tool_call_argument_begin|>'
    '{"city": "Rome", "days": 3}<|tool_call_end|><|tool_calls_section_end|>',
    "deepseek v3": "<｜tool▁calls▁begin｜>"
    '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "7", "days": 2}<｜tool▁call▁end｜>'
    '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Rome", "days": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "minimax m2": "Both.\n</think>\n\n<minimax:tool_call>\n"
    '<invoke name="weather">\n<parameter name="city">7</parameter>\n<parameter name="days">2</parameter>\n</invoke>\n'
    '<invoke name="weather">\n<parameter name="city">Rome</parameter>\n<parameter name="days">3</parameter>\n'
    "</invoke>\n</minimax:tool_call>",
    "lfm 2.5": '<|tool_call_start|>[weather(city="7", days=2), weather(city="Rome", days=3)]<|tool_call_end|>',
}
"""Answers of models of the family that call a tool twice. The first city is text that looks like a number."""

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Forecast.", "parameters": PARAMETERS}}


@pytest.mark.parametrize("name", SAMPLED)
def test_calls_in_the_models_own_form_are_read_continued_and_forced(name):
    renderer = renderer_of(name)
    prompt = [{"role": "user", "content": "Porto or Rome?"}]
    output = [*renderer.encode(SAMPLED[name]), renderer.eos_ids[0]]
    message = answer_of(renderer, output, [WEATHER])
    arguments = [json.loads(entry["function"]["arguments"]) for entry in message["tool_calls"]]
    assert arguments == [{"city": "7", "days": 2}, {"city": "Rome", "days": 3}]
    memory = ConversationMemory(renderer)
    first = memory.prompt(ATTEMPT, prompt, [WEATHER])
    memory.remember(ATTEMPT, first, first.ids, output, message)
    results = [{"role": "tool", "tool_call_id": entry["id"], "content": "sunny"} for entry in message["tool_calls"]]
    second = memory.prompt(ATTEMPT, [*prompt, message, *results], [WEATHER]).ids
    assert list(second[: len(first.ids) + len(output)]) == [*first.ids, *output]
    added = renderer.tokenizer.decode(second[len(first.ids) :])
    tags = ("<tool_response>", "<|tool_response_start|>", "## Return of", "<｜tool▁output▁begin｜>", "<response>")
    assert sum(added.count(tag) for tag in tags) == 2
    assert SAMPLED[name].rpartition("</think>")[2].lstrip().startswith(renderer.tool_format.forced_prefix("weather"))


def system(text):
    return {"role": "developer", "content": text}


@pytest.mark.parametrize("name", ["qwen 3.5", "gemma 2", "mistral tekken"])
def test_system_text_may_come_at_any_place_and_may_follow_results(name):
    renderer = renderer_of(name)
    called = {"role": "assistant", "content": None, "tool_calls": [{**call("1"), "id": "a1b2c3d4e"}]}
    result = {"role": "tool", "tool_call_id": "a1b2c3d4e", "content": "sunny"}
    history = [*map(system, ("Be-terse.", "Be-kind.")), *QUESTION, {"role": "assistant", "content": "Rome."}]
    for messages in (
        [*history, system("Be-quick."), *QUESTION, system("Be-sure.")],
        [*QUESTION, called, result, system("Be-kind.")],
        [*QUESTION, called, result, {"role": "user", "content": "Sure?"}],
        [*QUESTION, called, result, system("Be-kind."), {"role": "user", "content": "Sure?"}],
    ):
        text = renderer.tokenizer.decode(renderer.render(messages))
        parts = [message["content"] for message in messages if message["content"] not in (None, "12+30?")]
        places = [text.index(part) for part in parts]
        assert sorted(places) == places
        assert all(text.count(part) == 1 for part in parts)
