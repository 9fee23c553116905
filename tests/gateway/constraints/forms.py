"""Forms of answers as requests demand them, and continuations that their constraints allow, drawn without a model."""

from __future__ import annotations

import asyncio

import numpy as np

from mini_agentic_rl.gateway.constraints.compiler import ConstraintCompiler
from mini_agentic_rl.gateway.constraints.rules import answer_rule
from mini_agentic_rl.gateway.dialects.chat import parse_chat_request
from mini_agentic_rl.gateway.tool_formats import HERMES
from mini_agentic_rl.tokens import ConstraintError

from ..small_tokenizer import small_tokenizer

TOKENIZER = small_tokenizer()
END = TOKENIZER.eos_token_id
COMPILER = ConstraintCompiler(TOKENIZER, [END])
VOCABULARY = 2**20
"""More ids than any tokenizer here has."""

PLACE = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SHORT = {
    "type": "function",
    "function": {
        "name": "calculate",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "maxLength": 8}},
            "required": ["expression"],
            "additionalProperties": False,
        },
    },
}


def strict(tool):
    return {"type": "function", "function": {**tool["function"], "strict": True}}


def function(parameters, name="f"):
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def json_schema(schema, strict=True):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": strict}}


def rule_of(tool_format=None, thought=(None, False), **fields):
    request = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], **fields}
    return answer_rule(parse_chat_request(request), tool_format or HERMES, *thought)


def begin(tool_format=None, compiler=COMPILER, **fields):
    """A constraint for a request with these fields."""
    return asyncio.run(compiler.compile(rule_of(tool_format, **fields)))()


def written(text, tokenizer=TOKENIZER):
    return [*tokenizer.encode(text, add_special_tokens=False), END]


def ids_of(mask) -> list[int]:
    """The ids in a mask."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()


def walk(constraint, end_ids, *, seed=0, limit=2000, vocabulary=VOCABULARY) -> list[int]:
    """Ids drawn evenly among those allowed, up to and with an end token."""
    rng = np.random.default_rng(seed)
    drawn: list[int] = []
    while not drawn or drawn[-1] not in end_ids:
        assert len(drawn) < limit, "it does not end"
        drawn.append(int(rng.choice([id_ for id_ in ids_of(constraint.allowed(vocabulary)) if id_ < vocabulary])))
        constraint.advance(drawn[-1])
    return drawn


def accepts(constraint, ids) -> bool:
    """Whether these ids, in this order, are a whole continuation."""
    for token_id in ids:
        try:
            if token_id not in ids_of(constraint.allowed(VOCABULARY)):
                return False
        except ConstraintError:
            return False
        constraint.advance(token_id)
    return True
