"""The trees that a warm-up imitates: whole conversations, or most of them without their last answer."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.small_tokenizer import small_tokenizer
from mini_agentic_rl.algorithm.loop.warm_up import demonstration_trees
from mini_agentic_rl.algorithm.settings import WarmStartSettings
from mini_agentic_rl.gateway import ChatRenderer
from mini_agentic_rl.tokens import pack


def _conversation(*turns: str) -> list[dict[str, Any]]:
    return [
        message
        for number, turn in enumerate(turns)
        for message in ({"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": turn})
    ]


CONVERSATIONS = [_conversation("one", f"{number} fin") for number in range(400)]


def _ends(share: float) -> int:
    renderer = ChatRenderer(small_tokenizer())
    trees = demonstration_trees(renderer, CONVERSATIONS, (), WarmStartSettings(batch_size=8, endings=share))
    assert len(trees) == 50
    return sum(renderer.tokenizer.decode(pack([tree]).tokens_T.tolist()).count(" fin") for tree in trees)


@pytest.mark.parametrize(("share", "low", "high"), [(1.0, 400, 400), (0.0, 0, 0), (0.25, 60, 140)])
def test_a_share_of_the_conversations_is_imitated_to_its_end(share: float, low: int, high: int) -> None:
    assert low <= _ends(share) <= high
    assert _ends(share) == _ends(share)


def test_a_single_answer_is_imitated_whatever_the_share() -> None:
    renderer = ChatRenderer(small_tokenizer())
    (tree,) = demonstration_trees(renderer, [_conversation("end")], (), WarmStartSettings(endings=0.0))
    assert pack([tree]).term_count > 0
