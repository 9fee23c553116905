"""Rules about where the time goes, and whether what is computed is what was meant."""

from __future__ import annotations

from typing import Final

from ..readable import duration, latest, number, percent
from .finding import Finding
from .view import RunView, mean

_MISMATCH: Final = 0.1
"""Nats a token, the bound beyond which a server that samples is refused: bfloat16 gives about 0.01 where both sides
compute the same and the policy knows what it wants, and up to 0.07 on average while it makes up its mind."""
_OF_ENTROPY: Final = 0.03
"""Share of the entropy: rounding moves a token the more, the less sure of it the policy is. The embedded model before
any training has 0.055 at 3.3 nats, and an agent that is sure of its calls 0.002 at 0.02."""
_RISEN: Final = 2.0
_NOTICED: Final = 0.02
_TAIL: Final = 0.4
_SHORT: Final = 2.0
"""Seconds of a step's tail that matter to nobody."""
_FREE: Final = 0.75
_SHORTENED: Final = 0.6
"""Share of steps. The first one or two of a run are shortened as a rule, while the optimizer is fresh."""


def mismatch_rises(view: RunView) -> Finding | None:
    """Find that the learner gives sampled tokens other log-probabilities than the sampler did."""
    first, found = view.first("mismatch/mean_abs"), view.last("mismatch/mean_abs")
    if not found:
        return None
    before, now = mean(row[0] for row in first), mean(row[0] for row in found)
    entropy = mean(row[0] for row in view.last("entropy"))
    bound = max(_MISMATCH, _OF_ENTROPY * entropy) if entropy > 0 else _MISMATCH
    if now < bound and not (len(view.steps) > len(first) and now >= _RISEN * before and now >= _NOTICED):
        return None
    return Finding(
        "mismatch_rises",
        "fault" if now >= bound else "watch",
        "Sampler and learner disagree",
        f"the log-probability of a sampled token differs by {number(now)} nats on average, {number(before)} at first, "
        "so that the update corrects for what never happened",
        "Set `importance_correction=token`, which weighs it, or `dtype=float32`, which removes it; with servers as the "
        "sampler, `mini-agentic-rl parity` compares them token by token",
    )


def steps_shortened(view: RunView) -> Finding | None:
    """Find that most optimizer steps are longer than their bound allows."""
    shares = [row[0] for row in view.last("update/share")]
    shortened = [share for share in shares if share < 1]
    if len(shares) < 3 or len(shortened) < _SHORTENED * len(shares):
        return None
    return Finding(
        "steps_shortened",
        "watch",
        "The learning rate is higher than the bound of a step allows",
        f"{len(shortened)} of {latest(len(shares), 'step')} would have moved the policy too far; "
        f"{percent(mean(shortened), 0)} of such a step was taken, after several passes that measured it",
        "Lower `learning_rate`, which costs no passes; or raise `max_update_kl`, if such steps do no harm",
    )


def slow_tail(view: RunView) -> Finding | None:
    """Find that steps wait for their slowest rollouts."""
    found = view.last("seconds/tail", "seconds/sampling")
    tail, sampling = mean(row[0] for row in found), mean(row[1] for row in found)
    if len(found) < 2 or tail < _SHORT or tail < _TAIL * sampling:
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
    """Find that other work takes the processor away."""
    found = view.last("machine/cores_free", "machine/cores")
    free, cores = mean(row[0] for row in found), mean(row[1] for row in found)
    if not found or free >= _FREE * cores:
        return None
    return Finding(
        "shared_machine",
        "watch",
        "Other work takes the processor",
        f"of {cores:g} cores that this run may use, {free:.1f} were free for it in "
        f"{latest(len(found), 'step')}; its threads wait for each other then, and a step takes a multiple of its time",
        "End the other work, or leave cores to it: OMP_NUM_THREADS sets the threads of this run; seconds of such a run "
        "say nothing about the settings",
    )
