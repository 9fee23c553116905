"""Special tokens spelled in everything that can be said, through the chat templates of the main families."""

from __future__ import annotations

import random
from typing import Any

from gateway.render.families import FAMILIES
from mini_agentic_rl.gateway.render.renderer import ChatRenderer
from mini_agentic_rl.http import BadRequestError

from .conftest import Attack

Conversation = tuple[list[dict[str, Any]], list[dict[str, Any]]]
HARMLESS = "QqQ"


def conversation(said: str, place: str) -> Conversation:
    """A conversation in which `said` stands at one place."""

    def at(name: str, text: str) -> str:
        return f"{text} {said} {text}" if name == place else text

    call = {"name": at("call", "f"), "arguments": {at("key", "x"): [at("value", "1"), {"y": at("deep value", "2")}]}}
    messages = [
        {"role": "system", "content": at("system", "Help.")},
        {"role": "user", "content": at("user", "What is it?")},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": at("thought", "Hm."),
            "tool_calls": [{"id": "a1b2c3d4e", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "a1b2c3d4e", "name": at("call", "f"), "content": at("result", "42")},
        {"role": "assistant", "content": at("answer", "It is 42.")},
        {"role": "user", "content": at("last user", "Sure?")},
    ]
    parameters = {"type": "object", "properties": {at("property", "x"): {"description": at("schema", "an x")}}}
    function = {"name": at("tool", "f"), "description": at("description", "does"), "parameters": parameters}
    return messages, [{"type": "function", "function": function}]


PLACES = [
    "system", "user", "thought", "call", "key", "value", "deep value", "result", "answer", "last user", "property",
    "schema", "tool", "description",
]  # fmt: skip


def test_special_tokens_in_content_are_text_in_every_family(attack: Attack) -> None:
    rng = random.Random(18)
    families = list(FAMILIES.items())
    renderers = {}
    for number in range(attack.times(3000)):
        name, family = families[number % len(families)]
        if name not in renderers:
            tokenizer = family.tokenizer()
            extra = [tokenizer.convert_tokens_to_ids(token) for token in family.extra_eos]
            renderers[name] = (tokenizer, ChatRenderer(tokenizer, extra_eos_ids=extra))
        tokenizer, renderer = renderers[name]
        special = {id_: token.content for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
        parts = [*special.values(), "system", "assistant", "\n", " ", "<", "|>", '"', "x"]
        said = rng.choice(list(special.values())) + "".join(rng.choices(parts, k=rng.randint(0, 5))) + "x"
        place = PLACES[number // len(families) % len(PLACES)]
        with attack.attempt((name, place, said), limit_s=10):
            forged, honest = (ids_of(renderer, *conversation(text, place)) for text in (said, HARMLESS))
            if honest is None:
                assert forged is None
                continue
            assert forged is not None
            assert [id_ for id_ in forged if id_ in special] == [id_ for id_ in honest if id_ in special]
            text = tokenizer.decode(honest, skip_special_tokens=False)
            if '"' not in said and "\n" not in said:  # what JSON does not escape comes through letter by letter
                assert tokenizer.decode(forged, skip_special_tokens=False) == text.replace(HARMLESS, said)


def ids_of(renderer: ChatRenderer, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[int] | None:
    """The ids; None where the template has no form for such a conversation."""
    try:
        return renderer.render(messages, tools)
    except BadRequestError:
        return None
