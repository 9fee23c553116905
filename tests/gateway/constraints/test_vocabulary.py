"""Tokenizers that cannot be read, and vocabularies that are not the model's."""

from __future__ import annotations

import asyncio
import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mini_agentic_rl.gateway.constraints.compiler import ConstraintCompiler
from mini_agentic_rl.http import BadRequestError

from ..samples import CALCULATOR
from .test_grammars import END, SHORT, TOKENIZER, begin, json_schema, rule_of, strict, written
from .walks import accepts, walk

OBJECT_OF_ONE = {
    "response_format": json_schema(
        {
            "type": "object",
            "properties": {"name": {"enum": ["call", "result"]}},
            "required": ["name"],
            "additionalProperties": False,
        }
    )
}


class Foreign:
    """A tokenizer that works and is no fast Hugging Face tokenizer."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def __len__(self):
        return len(self._inner)


def _word_tokenizer():
    core = Tokenizer(models.WordLevel({"[UNK]": 0, "</s>": 1, "hi": 2}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="</s>", unk_token="[UNK]")


@pytest.mark.parametrize(
    ("tokenizer", "end_ids"), [(Foreign(TOKENIZER), [END]), (_word_tokenizer(), [1]), (TOKENIZER, [])]
)
def test_a_tokenizer_that_cannot_be_read_is_told_by_the_field_that_needs_it(tokenizer, end_ids):
    compiler = ConstraintCompiler(tokenizer, end_ids)
    for fields, param in (
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [CALCULATOR], "tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ):
        with pytest.raises(BadRequestError, match="tokenizer cannot be read") as caught:
            begin(compiler=compiler, **fields)
        assert caught.value.param == param
    assert asyncio.run(compiler.compile(rule_of(tools=[strict(CALCULATOR)]))) is None


@pytest.mark.parametrize("fields", [OBJECT_OF_ONE, {"tools": [SHORT], "tool_choice": "required"}])
def test_a_model_with_fewer_tokens_than_its_tokenizer_spells_with_what_it_has(fields):
    few = 270  # all bytes, and next to none of the merges
    for seed in range(5):
        drawn = walk(begin(**fields, parallel_tool_calls=False), {END}, seed=seed, vocabulary=few)
        assert max(drawn) < few
        text = TOKENIZER.decode(drawn[:-1])
        assert json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))


def test_end_tokens_beyond_the_tokenizers_vocabulary_are_no_hindrance():
    compiler = ConstraintCompiler(TOKENIZER, [END, len(TOKENIZER) + 40])
    assert accepts(begin(compiler=compiler, response_format={"type": "json_object"}), written('{"a": 1}'))
