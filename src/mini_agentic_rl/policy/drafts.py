"""N-gram speculation: guesses of the next tokens of a sequence, so that one forward pass may yield several of them.

A draw depends on its sequence's seed and position only, and a guess is accepted only if the same token is drawn:
speculation changes no token, only the number of passes (prompt look-up and n-gram speculation; Saxena 2023, Fu et al.
2024, arXiv 2402.02057). A guess is the continuation of the same few tokens before: in the prompt, in the answer so far,
or in the prompts and answers of other sequences, such as earlier rollouts of the same task.

A draft token is another row of the pass, which takes longer. `PassCost` estimates by how much, and tokens are guessed
only if that pays: with many sequences on a processor that is bound by arithmetic, none are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_LENGTHS = (4, 2)
"""Lengths of the n-grams that are looked up, the most reliable first."""
_ENTRIES = 65_536
"""Entries of one generation of the table; two exist at once, about 30 MB together."""
_FORGETTING = 0.98
"""Decay of an observation's weight with each later one."""
_UNTRIED = 0.5
"""Initial acceptance probability."""


@dataclass
class Indexed:
    """A sequence in the n-gram table."""

    tokens: Sequence[int]
    """Its tokens; more are appended while it is sampled."""
    count: int = 0
    """Number of tokens whose successor is in the table."""


@dataclass(frozen=True)
class Guess:
    """Draft tokens, and the length of the n-gram that they followed; 0 if a grammar determines them."""

    tokens: tuple[int, ...]
    matched: int

    def first(self, count: int) -> Guess:
        """Return the guess of its first `count` tokens."""
        return Guess(self.tokens[: max(count, 0)], self.matched)


@dataclass
class _Rate:
    """Moving average of the share of accepted guesses."""

    right: float = _UNTRIED
    tried: float = 1.0


@dataclass
class PassCost:
    """The seconds of a pass by its rows: fixed + each * rows, fitted by least squares to recent passes."""

    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)
    """Weighted sums over passes: 1, rows, rows squared, seconds, rows times seconds."""

    def observe(self, rows: int, seconds: float) -> None:
        """Record the duration of a pass."""
        if not self._sums[0]:
            # Prior: two made-up passes, in which half of the time is fixed.
            self._add(1, seconds * (0.5 + 0.5 / rows))
            self._add(2 * rows, seconds * 1.5)
        self._sums = [_FORGETTING * value for value in self._sums]
        self._add(rows, seconds)

    def share_of_row(self, rows: int) -> float | None:
        """Return what one row costs of a pass of `rows` rows, from 0 to 1 / rows; None before any pass."""
        weight, first, second, time, mixed = self._sums
        if not weight:
            return None
        spread = weight * second - first * first
        each = (weight * mixed - first * time) / spread if spread > 1e-9 * weight * second else time / first / 2
        fixed = (time - each * first) / weight
        # Noise can give either a wrong sign.
        each, fixed = max(each, 0.0), max(fixed, 0.0)
        whole = fixed + each * rows
        return each / whole if whole > 0 else 0.0

    def _add(self, rows: int, seconds: float) -> None:
        new = (1.0, float(rows), float(rows * rows), seconds, rows * seconds)
        self._sums = [old + value for old, value in zip(self._sums, new, strict=True)]


class Drafts:
    """Guesses for sequences that decode. Only the torch thread uses it."""

    def __init__(self, longest: int) -> None:
        """
        Args:
            longest: the most tokens guessed for a sequence in one pass; 0 guesses none.
        """
        self._longest = longest
        self.cost = PassCost()
        self._rates = {matched: _Rate() for matched in _LENGTHS}
        # From (n-gram length, hash) to a sequence and the position after the n-gram, in two generations: the older one
        # is dropped as a whole.
        self._recent: dict[tuple[int, int], tuple[Sequence[int], int]] = {}
        self._older: dict[tuple[int, int], tuple[Sequence[int], int]] = {}

    def guess(self, sequences: Sequence[Indexed], rooms: Sequence[int], budget: int) -> list[Guess | None]:
        """Return a guess for each decoding sequence, of the length that pays.

        Args:
            rooms: the most tokens that may be guessed for each.
            budget: the most for all together.
        """
        if not self._longest or not sequences:
            return [None] * len(sequences)
        for indexed in sequences:
            self._index(indexed)
        guesses = [self._look_up(indexed.tokens, room) for indexed, room in zip(sequences, rooms, strict=True)]
        lengths = self._worthwhile(guesses, budget)
        if not any(lengths):
            # Decay towards the initial estimates, so that guesses that did not pay are tried again.
            for rate in self._rates.values():
                rate.right = _FORGETTING * rate.right + (1 - _FORGETTING) * _UNTRIED
                rate.tried = _FORGETTING * rate.tried + (1 - _FORGETTING)
        return [
            guess.first(length) if guess is not None and length else None
            for guess, length in zip(guesses, lengths, strict=True)
        ]

    def observe(self, guess: Guess, right: int) -> None:
        """Record that the first `right` tokens of a guess were accepted, and the next one, if any, was rejected."""
        if guess.matched:
            rate = self._rates[guess.matched]
            rate.right = _FORGETTING * rate.right + right
            rate.tried = _FORGETTING * rate.tried + right + int(right < len(guess.tokens))

    def _worthwhile(self, guesses: Sequence[Guess | None], budget: int) -> list[int]:
        """Return the length of each guess at which the pass yields the most tokens a second.

        A row pays while its acceptance probability is above the tokens that the pass yields for the cost of a row.
        """
        lengths = [0] * len(guesses)
        rows = len(guesses)
        share = self.cost.share_of_row(rows)
        if share is None:
            return lengths
        expected = float(rows)
        # The probability that all draft tokens up to each one are accepted.
        chance_of = {matched: rate.right / rate.tried for matched, rate in self._rates.items()}
        chances = [
            (chance_of[guess.matched] ** depth, index)
            for index, guess in enumerate(guesses)
            if guess is not None
            for depth in range(1, len(guess.tokens) + 1)
        ]
        for chance, index in sorted(chances, reverse=True)[: max(budget, 0)]:
            if chance <= expected * share:
                break
            expected += chance
            # The pass grows by a row, so each row costs a smaller share.
            share /= 1 + share
            lengths[index] += 1
        return lengths

    def _look_up(self, tokens: Sequence[int], room: int) -> Guess | None:
        room = min(room, self._longest)
        for matched in _LENGTHS:
            if room < 1 or len(tokens) < matched:
                continue
            key = _key(tokens, len(tokens), matched)
            at = self._recent.get(key) or self._older.get(key)
            if at is not None:
                return Guess(tuple(at[0][at[1] : at[1] + room]), matched)
        return None

    def _index(self, indexed: Indexed) -> None:
        """Enter the continuations of a sequence's n-grams; of equal n-grams the latest counts."""
        for end in range(indexed.count + 1, len(indexed.tokens)):
            for matched in _LENGTHS:
                if end >= matched:
                    self._recent[_key(indexed.tokens, end, matched)] = (indexed.tokens, end)
        indexed.count = max(indexed.count, len(indexed.tokens) - 1)
        if len(self._recent) > _ENTRIES:
            self._older, self._recent = self._recent, {}


def _key(tokens: Sequence[int], end: int, count: int) -> tuple[int, int]:
    # Only the hash: a rare collision is one more wrong guess.
    return count, hash(tuple(tokens[end - count : end]))
