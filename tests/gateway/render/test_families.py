"""Conversations of five calls, with tools, results and thoughts, over templates like those of the main families."""

from __future__ import annotations

import re

import pytest

from mini_agentic_rl.gateway.completion.choice import Choice
from mini_agentic_rl.gateway.completion.remember import ConversationMemory
from mini_agentic_rl.gateway.render.messages import plain_messages
from mini_agentic_rl.gateway.render.renderer import ChatRenderer
from mini_agentic_rl.tokens import TokenDelta

from ..samples import CALCULATOR
from .families import FAMILIES

ATTEMPT = ("rollout", "attempt")
START = [{"role": "system", "content": "Be terse."}, {"role": "user", "content": "12+30?"}]
TOOLS = [CALCULATOR]


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
"""What the model says in its five calls; the third and the fifth follow a new question."""


class Client:
    """An agent's side of a conversation: asks, takes the answer, sends the history back."""

    def __init__(self, family, *, thinking="auto", sends_thoughts=True):
        self.family = family
        self.tokenizer = family.tokenizer()
        extra = self.tokenizer.convert_tokens_to_ids(list(family.extra_eos))
        self.renderer = ChatRenderer(self.tokenizer, thinking=thinking, extra_eos_ids=extra)
        self.memory = ConversationMemory(self.renderer)
        self.messages = list(START)
        self.sends_thoughts = sends_thoughts

    def ask(self, answer, tools=TOOLS):
        """One call: the prompt's ids, and all ids once `answer` has been sampled."""
        answer = answer if self.family.thinks else {k: v for k, v in answer.items() if k != "reasoning_content"}
        prompt = self.memory.prompt(ATTEMPT, plain_messages(self.messages), tools)
        output = [*self.renderer.encode(self.renderer.assistant_text(answer)), self.end_id(answer)]
        choice = Choice(
            0,
            self.renderer.decoder(True),
            end_ids=self.renderer.eos_ids,
            reader=self.renderer.reader(True),
            streamed=True,
        )
        for token_id in output:
            choice.take(TokenDelta((token_id,), (0.0,)))
        choice.finish("stop")
        message = choice.message()
        assert as_said(message) == as_said(answer)
        self.memory.remember(ATTEMPT, prompt, prompt.ids, output, plain_messages([message])[0])
        self.messages.append(
            message if self.sends_thoughts else {k: v for k, v in message.items() if k != "reasoning_content"}
        )
        for made in message.get("tool_calls", ()):
            self.messages.append({"role": "tool", "tool_call_id": made["id"], "content": "42"})
        if not message.get("tool_calls"):
            self.messages.append({"role": "user", "content": "Sure?"})
        return list(prompt.ids), [*prompt.ids, *output]

    def end_id(self, answer):
        """The token that the model ends with: where turns have no end of their own, what begins the next turn."""
        if self.family.extra_eos:
            user, observation = self.tokenizer.convert_tokens_to_ids(list(self.family.extra_eos))
            return observation if answer.get("tool_calls") else user
        return self.renderer.end_of_turn_id

    def text(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)


def as_said(message):
    calls = [(one["function"]["name"], plain_messages([message])[0]["tool_calls"][at]["function"]["arguments"])
             for at, one in enumerate(message.get("tool_calls", ()))]  # fmt: skip
    return (message["content"] or "").strip(), calls, message.get("reasoning_content")


def essence(text):
    """Without white space, and without the ids of calls."""
    return re.sub(r',"id":"\w+"', "", re.sub(r"\s+", "", text))


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


@pytest.mark.parametrize("sends_thoughts", [True, False])
def test_every_call_continues_token_by_token_or_forks_for_a_reason_that_is_counted(family, sends_thoughts):
    client = Client(family, sends_thoughts=sends_thoughts)
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
            assert text == expected if family.exact else essence(text) == essence(expected)
    assert forks == list(family.forks)


@pytest.mark.parametrize("sends_thoughts", [True, False])
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.thinks])
def test_kept_thinking_always_continues(name, sends_thoughts):
    client = Client(FAMILIES[name], thinking="keep", sends_thoughts=sends_thoughts)
    recorded: list[int] = []
    for answer in ANSWERS:
        prompt, all_ids = client.ask(answer)
        assert prompt[: len(recorded)] == recorded
        recorded = all_ids
    assert client.memory.prompt_counts()["forked"] == 0
    for answer in ANSWERS[:-1]:
        assert answer["reasoning_content"] in client.text(prompt)


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.thinks])
def test_dropped_thinking_never_reaches_a_later_prompt_and_forks(name):
    client = Client(FAMILIES[name], thinking="drop")
    for number, answer in enumerate(ANSWERS):
        prompt, _ = client.ask(answer)
        for earlier in ANSWERS:
            assert earlier["reasoning_content"] not in client.text(prompt)
        assert client.memory.prompt_counts()["forked_thinking"] == number


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.thinks])
def test_with_thinking_off_the_tags_are_text_of_the_answer(name):
    renderer = ChatRenderer(FAMILIES[name].tokenizer(), thinking="off")
    assert renderer.reader(calls=False) is None
    text = "<think>\nhm\n</think>\n\nYes."
    choice = Choice(0, renderer.decoder(False))
    choice.take(TokenDelta(tuple(renderer.encode(text)), (0.0,) * len(renderer.encode(text)), finish_reason="stop"))
    assert choice.message() == {"role": "assistant", "content": text}


def test_other_tools_are_told_apart_from_an_edited_history(family):
    client = Client(family)
    client.ask(ANSWERS[0])
    client.ask(ANSWERS[1], tools=[])
    assert client.memory.prompt_counts()["forked_tools"] == 1
