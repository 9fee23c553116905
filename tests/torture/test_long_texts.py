"""Long texts of every kind of run, encoded in pieces under the rules by which tokenizers cut texts into words."""

from __future__ import annotations

import random

from gateway.render.word_rules import RULES, core, hard_text
from mini_agentic_rl.gateway.render.content import encode_in_pieces

from .conftest import Attack


def test_long_texts_in_pieces_are_the_tokens_of_the_whole(attack: Attack) -> None:
    rng = random.Random(17)
    rules = list(RULES)
    for number in range(attack.times(600)):
        rule = rules[number % len(rules)]
        text = hard_text(rng, 10_000)
        with attack.attempt((rule, number), limit_s=10):
            assert encode_in_pieces(core(rule), text, 2048).tolist() == core(rule).encode(text).ids
