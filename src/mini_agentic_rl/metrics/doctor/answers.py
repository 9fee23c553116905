"""Rules about what the model says: whether it calls its tools, whether it is cut off, whether it still varies."""

from __future__ import annotations

from typing import Final

from ..readable import latest, number, percent
from .finding import Finding
from .view import RunView, mean

_FEW_ROLLOUTS: Final = 16
_FEW_TASKS: Final = 4
_SAME: Final = 0.95
_SOLVED: Final = 0.9
"""Mean reward above which the same answer may be the right one."""
_CUT: Final = 0.1
_OFTEN_CUT: Final = 0.3
_NO_ENTROPY: Final = 0.002
"""Nats a token: the rollouts of a task are then nearly always the same. An agent whose answers are mostly the fixed
form of a tool call learns well at 0.02."""
_LOW_ENTROPY: Final = 0.15
_LEFT: Final = 0.25
"""Share of its beginning to which an entropy has to fall to count as falling."""


def no_tool_calls(view: RunView) -> Finding | None:
    """Find that tools were offered and none was ever called."""
    found = view.last("rollout/tool_calls", "rollout/count")
    offered = [one for one in view.rollouts if one.offered_tools]
    calls, rollouts = sum(calls * count for calls, count in found), sum(row[1] for row in found)
    if not found:
        calls, rollouts = float(sum(one.tool_calls for one in offered)), float(len(offered))
    if rollouts < _FEW_ROLLOUTS or calls > 0:
        return None
    return Finding(
        "no_tool_calls",
        "fault",
        "The tool is never called",
        f"the agent offered tools in the last {rollouts:.0f} rollouts, and the model called none",
        "What is never tried is never reinforced: imitate examples that call it (`sft_examples`; in Python "
        "`warm_start`), show a call in the prompt, or reward one; if the transcripts hold calls as plain text, set the "
        "model's own `tool_format`",
        view.examples(offered),
    )


def cut_answers(view: RunView) -> Finding | None:
    """Find that answers end at the length bound."""
    found = [row[0] for row in view.last("rollout/truncated")]
    share = mean(found)
    if not found or share < _CUT:
        return None
    often = share >= _OFTEN_CUT
    return Finding(
        "cut_answers",
        "fault" if often else "watch",
        "Answers are cut off",
        f"{percent(share, 0)} of the rollouts of {latest(len(found), 'step')} ended at a bound of their "
        "length, before the answer was complete",
        "Raise `max_new_tokens`; where answers grow without need, `overlong_buffer` makes length cost something, and "
        "`mask_truncated` does not train what was cut",
        view.examples(one for one in view.rollouts if one.cut),
    )


def same_answer(view: RunView) -> Finding | None:
    """Find that the agent, which calls no tool, answers every task alike."""
    found = view.last("rollout/same_answer", "groups/count", "reward/mean")
    called = sum(row[0] for row in view.last("rollout/tool_calls"))
    if len(found) < 3 or called > 0 or min(row[1] for row in found) < _FEW_TASKS:
        return None
    share, reward = mean(row[0] for row in found), mean(row[2] for row in found)
    if share < _SAME or reward > _SOLVED:
        return None
    return Finding(
        "same_answer",
        "fault",
        "Every task gets the same answer",
        f"{percent(share, 0)} of the rollouts of {latest(len(found), 'step')} ended with the same words, and their "
        f"mean reward is {number(reward)}",
        "The policy has learned the answer that earns most on average instead of reading the task: put as many tasks "
        "of each right answer into a step (tasks with a field 'kind' take turns), take a smaller `learning_rate` or "
        "more `samples_per_prompt`, and begin anew",
    )


def entropy_gone(view: RunView) -> Finding | None:
    """Find that the policy has become certain of each token, so that the rollouts of a task are the same."""
    first, found = view.first("entropy"), view.last("entropy")
    if len(found) < 3:
        return None
    before, now = mean(row[0] for row in first), mean(row[0] for row in found)
    if not (now <= _NO_ENTROPY or (now <= _LEFT * before and now <= _LOW_ENTROPY)):
        return None
    return Finding(
        "entropy_gone",
        "watch",
        "The policy hardly varies any more",
        f"its entropy went from {number(before)} to {number(now)} nats a token, so that rollouts of a task become the "
        "same and stop teaching",
        "If the accuracy has stopped rising: raise `clip_ratio_high` (0.28) or `entropy_coef` (0.001), raise "
        "`temperature`, or lower `learning_rate`; imitating fewer examples (`sft_examples`) leaves more to begin with",
    )
