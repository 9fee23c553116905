"""A group as its page shows it: its rollouts by advantage, and the token tree that it is trained as.

The advantage here is the reward less the mean of the group's rewards, and the same over their standard deviation. What
a run trained with depends on its settings (baselines, shaping, credit), and is not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ....adapter import TrainedCalls, conversations
from ....emitter import find_reward_spans, get_rewards_from_span
from ....tokens import TokenTree
from ....types import Span
from ..browse import RolloutRow
from .token_text import TokenTexts

_ANSWER: Final = 4000
_NODE_TOKENS: Final = 48
_MAX_NODES: Final = 2000


def group_view(
    rows: Sequence[RolloutRow], spans: Mapping[str, Sequence[Span]], texts: TokenTexts | None
) -> dict[str, Any]:
    """Return the rollouts of a group, the best first, and their token tree.

    Args:
        rows: of its rollouts.
        spans: of the latest attempt of each rollout, by its id.
    """
    rewards = np.array([row["reward"] for row in rows if row["reward"] is not None], np.float64)
    mean, deviation = (float(rewards.mean()), float(rewards.std())) if rewards.size else (None, None)
    members: list[dict[str, Any]] = []
    for row in rows:
        of_rollout = spans.get(row["id"], ())
        reward_spans = find_reward_spans(of_rollout)
        parts = get_rewards_from_span(reward_spans[-1]) if reward_spans else []
        reward = row["reward"]
        advantage = None if reward is None or mean is None else reward - mean
        members.append(
            {
                **row,
                "advantage": advantage,
                "normalized": None if advantage is None or not deviation else advantage / deviation,
                "parts": [{"name": part.name[:200], "value": part.value} for part in parts],
                "answer": _answer(of_rollout),
            }
        )
    members.sort(key=lambda member: (member["reward"] is None, -(member["reward"] or 0.0)))
    why = None
    if rewards.size and (rewards.size == 1 or float(np.ptp(rewards)) == 0.0):
        why = "all rewards of the group are equal, so none of its rollouts is better than another: no gradient"
    return {
        "rollouts": members,
        "mean": mean,
        "deviation": deviation,
        "why": why,
        "tree": tree_view(rows, spans, texts),
    }


def tree_view(
    rows: Sequence[RolloutRow], spans: Mapping[str, Sequence[Span]], texts: TokenTexts | None
) -> dict[str, Any]:
    """Return the token tree of a group: its nodes, parents first, each with the rollouts that go through it."""
    tree = TokenTree()
    for number, row in enumerate(rows):
        for record in TrainedCalls().select(spans.get(row["id"], ())).records:
            tree.insert(record, number)
    through: dict[int, set[int]] = {}
    sampled: dict[int, int] = {}
    for one in tree.sampled:
        left = one.record.output_ids.size
        for node in reversed(tree.path(one.node)):
            through.setdefault(node, set()).add(one.trajectory)
            size = tree.nodes[node].tokens.size
            sampled[node] = max(sampled.get(node, 0), min(left, size))
            left = max(0, left - size)
    order: list[int] = []
    waiting = list(reversed(list(tree.nodes[0].children.values())))
    while waiting and len(order) < _MAX_NODES:
        node = waiting.pop()
        order.append(node)
        waiting += reversed(list(tree.nodes[node].children.values()))
    nodes = []
    for node in order:
        ids = tree.nodes[node].tokens
        begin = ids[:_NODE_TOKENS].tolist()
        rewards = [reward for number in through.get(node, ()) if (reward := rows[number]["reward"]) is not None]
        nodes.append(
            {
                "id": node,
                "parent": tree.nodes[node].parent,
                "tokens": int(ids.size),
                "sampled": sampled.get(node, 0),
                "text": None if texts is None else "".join(texts.of(begin)),
                "ids": begin[:12],
                "rollouts": [rows[number]["id"] for number in sorted(through.get(node, ()))],
                "reward": float(np.mean(rewards)) if rewards else None,
            }
        )
    total = sum(one.record.prompt_ids.size + one.record.output_ids.size for one in tree.sampled)
    return {"nodes": nodes, "tokens": tree.token_count, "unrolled": int(total), "left_out": len(waiting)}


def _answer(spans: Sequence[Span]) -> str:
    """Return the text of the last message of a rollout."""
    found = conversations(spans, shown=_ANSWER)
    messages = found[-1]["messages"] if found else []
    return messages[-1]["content"]["text"] if messages else ""
