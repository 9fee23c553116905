"""Credit assignment: the rewards of a rollout that each of its LLM calls is trained with.

For a rollout with trained calls t = 0 ... T-1, the choices of one response being one call:

    r_t   sum of the rewards emitted after call t and before call t+1 (after the last call: until the end)
    R     the last reward of the rollout as a whole: what the agent or a hook returned (`final=True`), 0 if nobody did
    L     the last reward of all, whoever gave it: the final reward that is reported

    broadcast    every call gets L
    last_call    the last call gets L, the others are not trained
    per_turn     call t gets r_t + R
    discounted   call t gets its return G_t = sum_{k >= t} gamma^(k-t) r_k + gamma^(T-1-t) R

Of a reward of several dimensions the primary one counts. Rewards before the first call belong to no call. Calls that
are not trained (another agent's, another model's) are part of the environment: what is emitted after them belongs to
the last trained call before. A number that is both emitted and returned counts twice in `per_turn` and `discounted`.

Within a group, a number is compared with those of the same turn: see `stack`.

Where several adapters are trained, each learns from its own calls, and to it the others are part of the environment. A
reward counts for all of them, unless it says whose it is: see `Recipient`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from ...emitter import get_reward_value, get_rewards_from_span, is_rollout_reward
from ...tokens import CompletionRecord
from ...types import Span
from ..losses.base import Floats, Ints
from .settings import CreditMode


@dataclass(frozen=True)
class Credit:
    """Worth of the calls of one rollout."""

    values_C: Floats
    """The numbers that are compared with those of the group's other rollouts, column by column."""
    column_R: Ints
    """For each record the column whose number it is trained with; -1 leaves it untrained."""


@dataclass(frozen=True)
class Rewards:
    """The rewards of one rollout, as its spans have them."""

    turns_T: Floats
    """r_t for each call."""
    whole: float
    """R."""
    last: float
    """L."""


@dataclass(frozen=True)
class Recipient:
    """One of several adapters that are trained, as rewards name it."""

    name: str
    others: Collection[str]
    """Names of the other adapters."""

    def value(self, span: Span) -> float | None:
        """Return the number of a reward span that is this adapter's: the one under its name, else the primary one,
        unless that is under another adapter's name. None for a span that has none."""
        rewards = get_rewards_from_span(span)
        own = next((reward.value for reward in rewards if reward.name == self.name), None)
        if own is None and not (rewards and rewards[0].name in self.others):
            return get_reward_value(span)
        return own

    def last(self, spans: Sequence[Span]) -> float | None:
        """Return its last reward of all; None when nobody gave it one."""
        return next((value for span in reversed(spans) if (value := self.value(span)) is not None), None)


def turn_numbers(records: Sequence[CompletionRecord]) -> Ints:
    """Return the number [records] of the call that each record belongs to: choices of one response share it."""
    numbers: list[int] = []
    for index, record in enumerate(records):
        same = index > 0 and record.response_id != "" and record.response_id == records[index - 1].response_id
        numbers.append(numbers[-1] + (not same) if numbers else 0)
    return np.array(numbers, np.int64)


def read_rewards(
    spans: Sequence[Span], records: Sequence[CompletionRecord], last: float, recipient: Recipient | None = None
) -> Rewards:
    """Return the rewards among `spans` (one attempt's, in the order of the store), by the call that each belongs to.

    Args:
        records: the calls that are trained, in order.
        last: L.
        recipient: whose rewards count; None takes all.
    """
    turns = turn_numbers(records)
    begins = np.array([record.sequence_id for record in records], np.int64)
    turns_T = np.zeros(int(turns[-1]) + 1 if turns.size else 0, np.float64)
    whole = 0.0
    for span in spans:
        value = get_reward_value(span) if recipient is None else recipient.value(span)
        if value is None:
            continue
        before = int(np.searchsorted(begins, span.sequence_id))
        if is_rollout_reward(span):
            whole = value
        elif before > 0:
            turns_T[turns[before - 1]] += value
    return Rewards(turns_T, whole, last)


def broadcast(records: Sequence[CompletionRecord], reward: float) -> Credit:
    """Return the credit under which every call is worth the same."""
    return Credit(np.array([reward], np.float64), np.zeros(len(records), np.int64))


def assign(mode: CreditMode, records: Sequence[CompletionRecord], rewards: Rewards, *, discount: float = 1.0) -> Credit:
    """Return the credit of a rollout's calls under `mode`; `discount` is the gamma of "discounted"."""
    if mode == "broadcast":
        return broadcast(records, rewards.last)
    turns = turn_numbers(records)
    if mode == "last_call":
        last = turns.max(initial=0)
        return Credit(np.array([rewards.last], np.float64), np.where(turns == last, 0, -1))
    if mode == "per_turn":
        return Credit(rewards.turns_T + rewards.whole, turns)
    return Credit(returns(rewards.turns_T, rewards.whole, discount), turns)


def returns(turns_T: Floats, whole: float, discount: float) -> Floats:
    """Return the discounted sum of the rewards from each call on; `whole` comes with the last call."""
    returns_T = np.zeros_like(turns_T)
    to_come = whole
    for turn in range(turns_T.size - 1, -1, -1):
        to_come = turns_T[turn] + (to_come if turn == turns_T.size - 1 else discount * to_come)
        returns_T[turn] = to_come
    return returns_T


def stack(credits: Sequence[Credit]) -> Floats:
    """Return the numbers of a group's G rollouts side by side: [G] where each has one, else [G, C].

    A rollout that ended before a turn stands there with its last number. So every rollout counts once in the mean of
    each turn, however many calls it made; a late turn that one rollout alone has reached is still compared with how the
    others ended; equal rollouts have no advantage at any turn; and where all of a rollout's numbers are the same (only
    a final reward was given), its advantage is exactly that of "broadcast".
    """
    width = max(credit.values_C.size for credit in credits)
    rows = [np.concatenate([c.values_C, np.repeat(c.values_C[-1:], width - c.values_C.size)]) for c in credits]
    matrix = np.stack(rows)
    return np.asarray(matrix[:, 0] if width == 1 else matrix)
