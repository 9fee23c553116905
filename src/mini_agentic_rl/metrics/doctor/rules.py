"""The list of all rules, and the diagnosis that they make together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from .answers import cut_answers, entropy_gone, no_tool_calls, same_answer
from .finding import Finding
from .machine import mismatch_rises, shared_machine, slow_tail, steps_shortened
from .rewards import (
    accuracy_falls,
    equal_rewards,
    failed_rollouts,
    no_reward,
    nothing_to_select,
    partial_reward,
    reward_not_accuracy,
    reward_without_accuracy,
)
from .view import RunView

RULES: Final[Sequence[Callable[[RunView], Finding | None]]] = (
    no_reward,
    failed_rollouts,
    equal_rewards,
    partial_reward,
    nothing_to_select,
    no_tool_calls,
    same_answer,
    cut_answers,
    reward_not_accuracy,
    reward_without_accuracy,
    accuracy_falls,
    mismatch_rises,
    steps_shortened,
    entropy_gone,
    slow_tail,
    shared_machine,
)
"""Every rule, those of the plainest causes first. A new one is a function and a line here."""


def diagnose(view: RunView) -> list[Finding]:
    """Return what the rules find in a run: faults first, then what is to be watched, each in the order of `RULES`."""
    found: dict[tuple[str, str], Finding] = {}
    for part in view.parts():
        for rule in RULES:
            finding = rule(part)
            if finding is not None:
                found.setdefault((finding.rule, finding.seen), replace(finding, adapter=part.adapter))
    return sorted(found.values(), key=lambda finding: finding.level != "fault")
