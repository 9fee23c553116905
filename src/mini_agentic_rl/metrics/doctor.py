"""The doctor: rules over the recorded metrics and rollouts of a run, which name faults and the settings to change.

Each rule is a pure function from a `RunView` to a `Finding` or None; `RULES` lists them all. The live view, the report,
the dashboard and the command `doctor` print the findings of `diagnose`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from .base import duration, latest, number, percent
from .view import Finding, Level, Measured, RunView, mean

_FEW_ROLLOUTS: Final = 16
_FEW_TASKS: Final = 4
_SAME: Final = 0.95
_SOLVED: Final = 0.9
"""Mean reward above which the common answer may be right."""
_MOSTLY_SOLVED: Final = 0.8
"""Mean reward above which low entropy is what training is for."""
_CUT: Final = 0.1
_OFTEN_CUT: Final = 0.3
_NO_ENTROPY: Final = 0.002
"""Entropy, in nats a token, at which the rollouts of a task are nearly always the same. An agent whose answers are
mostly the fixed form of a tool call learns well at 0.02."""
_LOW_ENTROPY: Final = 0.15
_LEFT: Final = 0.25
"""Share of the initial entropy below which it counts as fallen."""


def no_tool_calls(view: RunView) -> Finding | None:
    """Find that offered tools are never called."""
    rows = view.last("rollout/tool_calls", "rollout/count")
    offered = [rollout for rollout in view.rollouts if rollout.offered_tools]
    calls, rollouts = sum(calls * count for calls, count in rows), sum(row[1] for row in rows)
    if not rows:
        calls, rollouts = float(sum(rollout.tool_calls for rollout in offered)), float(len(offered))
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
    rows = [row[0] for row in view.last("rollout/truncated")]
    share = mean(rows)
    if not rows or share < _CUT:
        return None
    often = share >= _OFTEN_CUT
    return Finding(
        "cut_answers",
        "fault" if often else "watch",
        "Answers are cut off",
        f"{percent(share, 0)} of the rollouts of {latest(len(rows), 'step')} ended at a bound of their "
        "length, before the answer was complete",
        "Raise `max_new_tokens`; if answers are longer than necessary, `overlong_buffer` penalizes length, and "
        "`mask_truncated` leaves cut answers out of the loss",
        view.examples(rollout for rollout in view.rollouts if rollout.cut),
    )


def same_answer(view: RunView) -> Finding | None:
    """Find that an agent without tool calls gives the same answer to every task."""
    rows = view.last("rollout/same_answer", "groups/count", "reward/mean")
    called = sum(row[0] for row in view.last("rollout/tool_calls"))
    if len(rows) < 3 or called > 0 or min(row[1] for row in rows) < _FEW_TASKS:
        return None
    share, reward = mean(row[0] for row in rows), mean(row[2] for row in rows)
    if share < _SAME or reward > _SOLVED:
        return None
    return Finding(
        "same_answer",
        "fault",
        "Every task gets the same answer",
        f"{percent(share, 0)} of the rollouts of {latest(len(rows), 'step')} ended with the same words, and their "
        f"mean reward is {number(reward)}",
        "The policy has learned the answer that earns most on average instead of reading the task: put as many tasks "
        "of each right answer into a step (tasks with a field 'kind' take turns), take a smaller `learning_rate` or "
        "more `samples_per_prompt`, and begin anew",
    )


def entropy_gone(view: RunView) -> Finding | None:
    """Find that the policy has hardly any entropy left before it has solved its tasks, so that the rollouts of a task
    are the same."""
    first, rows = view.first("entropy"), view.last("entropy")
    if len(rows) < 3 or mean(row[0] for row in view.last("reward/mean")) > _MOSTLY_SOLVED:
        return None
    before, now = mean(row[0] for row in first), mean(row[0] for row in rows)
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


_MISMATCH: Final = 0.1
"""Nats a token; also the bound for sampling servers. In bfloat16 equal computations differ by about 0.01 with a
confident policy, and by up to 0.07 on average while it learns."""
_OF_ENTROPY: Final = 0.03
"""Bound as a share of the entropy: rounding changes uncertain tokens more. The untrained embedded model has 0.055 at
3.3 nats, an agent that is sure of its calls 0.002 at 0.02."""
_RISEN: Final = 2.0
_NOTICED: Final = 0.02
_TAIL: Final = 0.4
_SHORT: Final = 2.0
"""Seconds of a step's tail that are too few to report."""
_FREE: Final = 0.75
_SHORTENED: Final = 0.6
"""Share of shortened steps. The first one or two steps of a run are usually shortened, while the optimizer is new."""


def mismatch_rises(view: RunView) -> Finding | None:
    """Find that learner and sampler disagree on the log-probabilities of sampled tokens."""
    first, rows = view.first("mismatch/mean_abs"), view.last("mismatch/mean_abs")
    if not rows:
        return None
    before, now = mean(row[0] for row in first), mean(row[0] for row in rows)
    entropy = mean(row[0] for row in view.last("entropy"))
    bound = max(_MISMATCH, _OF_ENTROPY * entropy) if entropy > 0 else _MISMATCH
    if now < bound and not (len(view.steps) > len(first) and now >= _RISEN * before and now >= _NOTICED):
        return None
    return Finding(
        "mismatch_rises",
        "fault" if now >= bound else "watch",
        "Sampler and learner disagree",
        f"the log-probability of a sampled token differs by {number(now)} nats on average, {number(before)} at first, "
        "so the gradient is that of probabilities that no token was sampled with",
        "Set `importance_correction=token`, which corrects for the difference, or `dtype=float32`, which removes it; "
        "with servers as the sampler, check that they serve the same base model in the same number format",
    )


def steps_shortened(view: RunView) -> Finding | None:
    """Find that most optimizer steps exceed the bound on the policy change."""
    shares = [row[0] for row in view.last("update/share")]
    shortened = [share for share in shares if share < 1]
    if len(shares) < 3 or len(shortened) < _SHORTENED * len(shares):
        return None
    return Finding(
        "steps_shortened",
        "watch",
        "The learning rate is higher than the bound of a step allows",
        f"{len(shortened)} of {latest(len(shares), 'step')} would have moved the policy too far; "
        f"they were shortened to {percent(mean(shortened), 0)} on average, and measuring each took several passes",
        "Lower `learning_rate`, which saves these passes; or raise `max_update_kl` if such steps do no harm",
    )


def slow_tail(view: RunView) -> Finding | None:
    """Find that steps wait for their slowest rollouts."""
    rows = view.last("seconds/tail", "seconds/sampling")
    tail, sampling = mean(row[0] for row in rows), mean(row[1] for row in rows)
    if len(rows) < 2 or tail < _SHORT or tail < _TAIL * sampling:
        return None
    return Finding(
        "slow_tail",
        "watch",
        "Steps wait for their slowest rollouts",
        f"the last eighth of the rollouts took {duration(tail)} of the {duration(sampling)} of sampling of a step "
        f"({percent(tail / sampling, 0)}), while all others had ended",
        "Set `max_staleness=1`, so that the next rollouts begin meanwhile; or bound the slow ones by "
        "`max_rollout_tokens`, `max_rollout_calls`, `max_new_tokens` or `rollout_timeout`",
    )


def shared_machine(view: RunView) -> Finding | None:
    """Find that other programs use the processor."""
    rows = view.last("machine/cores_free", "machine/cores")
    free, cores = mean(row[0] for row in rows), mean(row[1] for row in rows)
    if not rows or free >= _FREE * cores:
        return None
    return Finding(
        "shared_machine",
        "watch",
        "Other programs use the processor",
        f"of the {cores:g} cores that this run may use, {free:.1f} were free in {latest(len(rows), 'step')}; its "
        "threads then wait for each other, and a step takes several times as long",
        "End the other programs, or set OMP_NUM_THREADS to the number of free cores; do not compare the seconds of "
        "this run with those of others",
    )


IdleCause = Literal["solved", "unsolved", "constant", "alike"]

IDLE: Final[Mapping[IdleCause, tuple[str, str]]] = {
    "solved": (
        "all rewards are {reward:.3g}",
        "take harder tasks, or a reward that distinguishes good answers from better ones",
    ),
    "unsolved": (
        "all rewards are 0",
        "take easier tasks, imitate more examples first (`sft_examples`; in Python `warm_start`), or raise "
        "`temperature` or `samples_per_prompt`",
    ),
    "constant": (
        "all rewards are {reward:.3g}",
        "check that the reward distinguishes answers; if it is the lowest possible reward, take easier tasks or "
        "raise `temperature` or `samples_per_prompt`",
    ),
    "alike": (
        "all rollouts of a task have the same reward, though tasks differ (mean {reward:.3g})",
        "take tasks that are solved now and then (`dynamic_sampling`, `curriculum=pass_rate`), or raise `temperature` "
        "or `samples_per_prompt`",
    ),
}
"""Cause → description of steps without a training signal, and advice."""

_EXACT: Final = 1e-9
_FEW_GROUPS: Final = 8
_MOST: Final = 2 / 3
"""Share of groups without a signal above which most of the sampling is wasted; a run that has learned its tasks comes
close."""
_NEARLY_ALL: Final = 0.85
_NEAR: Final = 0.1
"""Distance from 0 or 1 within which a mean reward counts as 0 or 1."""
_SAME_REWARD: Final = 0.05
"""Standard deviation up to which the rewards of a step count as the same."""
_UNREWARDED: Final = 0.1
_FAILED: Final = 0.2
_FALL: Final = 0.05
"""Fall of an accuracy that is reported if the number of its tasks is unknown."""
_DEVIATIONS: Final = 1.64
"""Standard errors by which an accuracy has to fall to be reported (one-sided, 5 %)."""
_OFTEN_RIGHT: Final = 2 / 3
"""pass@1 above which selection has little left to improve."""
SELECTION_GAP: Final = 0.25
"""Smallest useful difference between pass@8 and pass@1."""
_RISE: Final = 0.02
_CLEAR_RISE: Final = 0.1
"""Rise of the reward that should raise the accuracy."""


def idle_cause(reward: float, spread: float) -> IdleCause:
    """Return why the rollouts of a task have the same reward.

    Args:
        reward: mean of the rewards of a step.
        spread: their standard deviation.
    """
    if spread > _EXACT:
        return "alike"
    if abs(reward) <= _EXACT:
        return "unsolved"
    return "solved" if reward >= 1 - _EXACT else "constant"


def equal_rewards(view: RunView) -> Finding | None:
    """Find that the rollouts of most groups have equal rewards, so that there is no gradient."""
    rows = view.last("groups/count", "groups/with_signal", "reward/mean", "reward/std")
    groups, signals = sum(row[0] for row in rows), sum(row[1] for row in rows)
    if groups < _FEW_GROUPS or groups - signals < _MOST * groups:
        return None
    reward, spread = mean(row[2] for row in rows), mean(row[3] for row in rows)
    if partial_reward(view) is not None:  # it says more
        return None
    cause = idle_cause(reward, spread)
    if cause == "alike" and reward >= 1 - _NEAR:
        cause = "solved"
    elif cause == "alike" and abs(reward) <= _NEAR:
        cause = "unsolved"
    seen = (
        f"in {groups - signals:.0f} of {groups:.0f} groups of {latest(len(rows), 'step')} all rollouts "
        f"earned the same (mean reward {number(reward)}), and such a group has no gradient"
    )
    level: Level = "fault" if groups - signals >= _NEARLY_ALL * groups else "watch"
    advice = IDLE[cause][1]
    return Finding("equal_rewards", level, "Most groups teach nothing", seen, advice[:1].upper() + advice[1:])


def partial_reward(view: RunView) -> Finding | None:
    """Find that nearly all rollouts earn the same partial reward, by an answer that earns it for any task."""
    rows = view.last("groups/count", "groups/with_signal", "reward/mean", "reward/std")
    groups, signals = sum(row[0] for row in rows), sum(row[1] for row in rows)
    if groups < _FEW_GROUPS or groups - signals < _MOST * groups:
        return None
    reward = mean(row[2] for row in rows)
    same = all(row[3] <= _SAME_REWARD and abs(row[2] - reward) <= _SAME_REWARD for row in rows)
    if not same or not _SAME_REWARD < abs(reward) < 1 - _SAME_REWARD:
        return None
    return Finding(
        "partial_reward",
        "fault",
        "Nearly every rollout earns the same partial reward",
        f"the mean reward of {latest(len(rows), 'step')} is {number(reward)}, "
        f"the largest standard deviation {number(max(row[3] for row in rows))}",
        "Read a rollout: an answer that always earns this part hides the whole reward, so let wrong answers earn "
        "nothing and begin anew; if it is the lowest possible reward, take easier tasks, or raise `temperature` or "
        "`samples_per_prompt`",
    )


def nothing_to_select(view: RunView) -> Finding | None:
    """Find that after the warm-up several tries at a task succeed no more often than one, and the reward does not
    rise."""
    rewards = _rewards(view)
    if not view.probes or (rewards is not None and rewards[1] - rewards[0] >= _CLEAR_RISE):
        return None
    single, several = view.probes[-1]
    if single >= _OFTEN_RIGHT or several - single >= SELECTION_GAP:
        return None
    if several == 0:
        seen = "no try of any task was right after the warm-up"
        advice = (
            "Imitate more examples (`sft_examples`), take easier tasks (`difficulty`), or reward a part of the answer"
        )
    else:
        seen = (
            f"after the warm-up {percent(single, 0)} of single tries were right, and {percent(several, 0)} of eight: "
            "the policy is as sure of wrong answers as of right ones"
        )
        advice = "Imitate fewer examples (`sft_examples`), or raise `temperature` or `samples_per_prompt`"
    return Finding("nothing_to_select", "watch", "Rewards have little to select from", seen, advice)


def no_reward(view: RunView) -> Finding | None:
    """Find that successful rollouts have no reward."""
    without = [rollout for rollout in view.rollouts if rollout.succeeded and rollout.reward is None]
    rows = view.last("rollout/unrewarded", "rollout/count")
    missing, rollouts = sum(row[0] for row in rows), sum(row[1] for row in rows)
    if not rows:
        missing, rollouts = float(len(without)), float(len(view.rollouts))
    if rollouts == 0 or missing < _UNREWARDED * rollouts:
        return None
    return Finding(
        "no_reward",
        "fault",
        "Rollouts have no reward",
        f"{missing:.0f} of the last {rollouts:.0f} rollouts succeeded without a reward; training leaves them out and "
        "does not count them as 0",
        "Let the agent return a number, or call `emit_reward`, on every path, including errors and early returns",
        view.examples(without),
    )


def failed_rollouts(view: RunView) -> Finding | None:
    """Find that many rollouts fail."""
    rows = view.last("rollout/failed", "rollout/count")
    failed, rollouts = sum(row[0] for row in rows), sum(row[1] for row in rows)
    bad = [rollout for rollout in view.rollouts if not rollout.succeeded]
    if not rows:
        failed, rollouts = float(len(bad)), float(len(view.rollouts))
    if rollouts == 0 or failed < _FAILED * rollouts:
        return None
    reasons = [rollout.why for rollout in bad if rollout.why]
    often = f", most often: {max(sorted(set(reasons)), key=reasons.count)[:200]}" if reasons else ""
    return Finding(
        "failed_rollouts",
        "fault",
        "Rollouts fail",
        f"{failed:.0f} of the last {rollouts:.0f} rollouts failed{often}",
        "Look at them with `agl rollouts list --status failed --store RUN_FOLDER`; if they run out of time, raise "
        "`rollout_timeout`; if another try may succeed, set `on_failure=retry`",
        view.examples(bad),
    )


def reward_not_accuracy(view: RunView) -> Finding | None:
    """Find that the reward rises while the accuracy on held-out tasks falls."""
    fall, rewards = _worst_fall(view), _rewards(view)
    if fall is None or rewards is None or rewards[1] - rewards[0] < _RISE:
        return None
    return Finding(
        "reward_not_accuracy",
        "fault",
        "The reward rises and the accuracy falls",
        f"the reward of training went from {number(rewards[0])} to {number(rewards[1])}, {_course(*fall)}",
        "Read the rollouts that earn most: does the reward pay for something else than the task? If not, the policy "
        "memorizes the tasks: take more tasks, fewer steps (`total_steps`), a smaller `learning_rate` or some "
        "`kl_coef`; `validation_size` keeps the weights that were best",
    )


def reward_without_accuracy(view: RunView) -> Finding | None:
    """Find that the reward rises while the accuracy on held-out tasks stays the same."""
    rewards = _rewards(view)
    rows = _from_start(view, "accuracy")
    if rewards is None or rewards[1] - rewards[0] < _CLEAR_RISE or len(rows) < 2:
        return None
    before, now = rows[0], rows[-1]
    if before.step > 0 or abs(now.accuracy - before.accuracy) > _chance(before, now) or now.accuracy >= 1 - _NEAR:
        return None
    return Finding(
        "reward_without_accuracy",
        "watch",
        "The reward rises and the accuracy does not",
        f"the reward of training went from {number(rewards[0])} to {number(rewards[1])}, {_course(before, now)}, which "
        "is within chance",
        "Read the rollouts that earn most: a wrong answer may earn a part of the reward. If not, measure more held-out "
        "tasks (`eval_size`), or train on more different tasks",
    )


def accuracy_falls(view: RunView) -> Finding | None:
    """Find that the accuracy on held-out tasks falls and the reward does not rise either."""
    fall, rewards = _worst_fall(view), _rewards(view)
    if fall is None or rewards is None or rewards[1] - rewards[0] >= _RISE:
        return None
    return Finding(
        "accuracy_falls",
        "fault",
        "The accuracy falls",
        f"{_course(*fall)}; the reward of training went from {number(rewards[0])} to {number(rewards[1])}",
        "Often a single update does most of the damage: look for a step with a much larger grad_norm. Take a smaller "
        "`learning_rate` or `max_update_kl`, `loss_aggregation=token`, more rollouts in a step "
        "(`tasks_per_step`) or some `kl_coef`; `validation_size` keeps the weights that were best",
    )


def _rewards(view: RunView) -> tuple[float, float] | None:
    """Return the mean rewards of the first and of the last steps; None for fewer than two steps."""
    first, last = view.first("reward/mean"), view.last("reward/mean")
    if len(view.steps) < 2 or not first:
        return None
    if len(view.steps) < 2 * len(first):  # the windows overlap: compare the first step with the last
        return first[0][0], last[-1][0]
    return mean(row[0] for row in first), mean(row[0] for row in last)


def _worst_fall(view: RunView) -> tuple[Measured, Measured] | None:
    return next(filter(None, (_fall(view, name) for name in dict.fromkeys(row.name for row in view.measured))), None)


def _course(best: Measured, now: Measured) -> str:
    return (
        f"the accuracy on tasks that are not trained went from {percent(best.accuracy)} (step {best.step}) "
        f"to {percent(now.accuracy)} (step {now.step})"
    )


def _from_start(view: RunView, name: str) -> list[Measured]:
    """Return the measurements of a name; of several before the first step only the last."""
    rows = [row for row in view.measured if row.name == name]
    return [row for row in rows if row.step == 0][-1:] + [row for row in rows if row.step > 0]


def _fall(view: RunView, name: str) -> tuple[Measured, Measured] | None:
    """Return the best measurement since training began and the latest, if that is significantly worse."""
    rows = _from_start(view, name)
    if len(rows) < 2:
        return None
    best, now = max(rows[:-1], key=lambda row: row.accuracy), rows[-1]
    fall = best.accuracy - now.accuracy
    return (best, now) if fall > _chance(best, now) else None


def _chance(first: Measured, second: Measured) -> float:
    if not first.count or not second.count:
        return _FALL
    both = (first.accuracy * first.count + second.accuracy * second.count) / (first.count + second.count)
    return _DEVIATIONS * math.sqrt(max(both * (1 - both), 1e-4) * (1 / first.count + 1 / second.count))


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
"""All rules, those of the simplest causes first."""


def diagnose(view: RunView) -> list[Finding]:
    """Return the findings of the rules: faults first, then warnings, each in the order of `RULES`."""
    findings: dict[tuple[str, str], Finding] = {}
    for part in view.parts():
        for rule in RULES:
            finding = rule(part)
            if finding is not None:
                findings.setdefault((finding.rule, finding.seen), replace(finding, adapter=part.adapter))
    return sorted(findings.values(), key=lambda finding: finding.level != "fault")


_KEPT: Final = 20
"""Number of first steps, and of last steps, that are kept."""


class RunWatch:
    """Applies the rules to a running run."""

    def __init__(self) -> None:
        self.view = RunView(())
        """View of the kept part of the run."""

    def add(self, row: Mapping[str, Any]) -> list[Finding] | None:
        """Add a row of metrics with its phase and step. Return the current findings; None if the row is neither a step
        of reinforcement learning nor a measurement."""
        added, before = RunView.of_rows([row]), self.view
        steps = [*before.steps, *added.steps]
        self.view = RunView(
            steps[:_KEPT] + steps[_KEPT:][-_KEPT:],
            [*before.measured, *added.measured],
            probes=[*before.probes, *added.probes],
        )
        return diagnose(self.view) if added.steps or added.measured else None
