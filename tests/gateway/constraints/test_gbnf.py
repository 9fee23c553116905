"""Grammars in GBNF: what they describe, and what reading them takes."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from mini_agentic_rl.gateway.constraints.grammar import Vocabulary, compile_grammar
from mini_agentic_rl.gateway.constraints.rules import GbnfError, lark_of

from ..small_tokenizer import small_tokenizer

JSON = r"""root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""
SUM = 'root ::= expr\nexpr ::= term ("+" expr)?\nterm ::= [0-9]+ | "(" expr ")"\n'


@pytest.fixture(scope="module")
def vocabulary():
    tokenizer = small_tokenizer()
    return Vocabulary(tokenizer, [tokenizer.eos_token_id])


@pytest.mark.parametrize(
    ("grammar", "said", "refused"),
    [
        ('root ::= "S " col # c\ncol ::= "a" |\n  "b" | [0-9]+', ["S 12", "S b"], ["S ", "S c"]),
        (JSON, ['{"a": [1, 2.5, "x\\n"], "b": {"c": null}}', "{}"], ['{"a"', "[1]"]),
        (SUM, ["1+(22+3)"], ["1+", "()"]),
        ("root ::= [^/&~\\[\\]]+ .", ["abc.", "abc\n"], ["a/bx"]),
        ('root ::= "fox" | word\nword ::= [a-z]+ "x"', ["fox", "foxx", "forx"], ["for"]),
        ('my-Root ::= "a"\nroot ::= my-Root{2,3} "\\u00e9\\x41\\n"', ["aaéA\n", "aaaéA\n"], ["aéA\n"]),
    ],
)
def test_a_grammar_allows_what_it_describes(vocabulary, grammar, said, refused):
    begun = compile_grammar(lark_of(grammar), vocabulary.tokens)

    def allows(text):
        matcher, ids = begun.deep_copy(), vocabulary.tokens.tokenize_str(text)
        return matcher.validate_tokens(ids) == len(ids) and matcher.consume_tokens(ids) and matcher.is_accepting()

    assert [text for text in (*said, *refused) if allows(text)] == said


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('start ::= "a"', "no rule 'root'"),
        ("root ::= other", "no rule 'other'"),
        ("root ::= ", "'root' is empty"),
        ('root ::= "a"\nroot ::= "b"', "twice"),
        ('root ::= "a"\nb ::= "open', "line 2"),
        ('"a" ::= root', "not with a rule"),
    ],
)
def test_what_cannot_be_read_is_said(grammar, reason):
    with pytest.raises(GbnfError, match=reason):
        lark_of(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + " | ".join(f'"w{i}"' for i in range(12_000)),
        "".join(f'r{i} ::= r{i + 1} "a"\n' for i in range(6000)) + 'r6000 ::= "x"\nroot ::= r0\n',
        "root ::= " + "{ " * 50_000,
        "root ::= " + '"a\\' * 30_000,
        ("a" * 1000 + " " * 1000) * 60,
    ],
    ids=["choices", "chain", "braces", "quotes", "spaces"],
)
def test_a_large_grammar_takes_no_long_time_to_read(grammar):
    began = time.process_time()
    with suppress(GbnfError):
        lark_of(grammar)
    assert time.process_time() - began < 3
