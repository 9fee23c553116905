"""The majority vote of k answers (self-consistency; Wang et al. 2023, arXiv:2203.11171), averaged over all draws.

As pass@k is, maj@k is the mean over every way to draw k of the n answers that were sampled: of each draw the share of
the most frequent answers that are right, so that a tie counts in part. It is exact, and costs no draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import comb

from ..rewards import extract_answer, normalise_answer


def ballot(text: str | None) -> str | None:
    """Return the answer that a reply votes for, in its plain form; None abstains."""
    answer = None if text is None else extract_answer(text)
    return None if answer is None else normalise_answer(answer)


def majority_at_k(ballots: Sequence[str | None], right: Mapping[str, bool], k: int) -> float:
    """Return the chance that the majority of `k` of these answers is right; who abstains takes a place and no vote.

    Args:
        ballots: what each answer votes for.
        right: which votes are right.

    Raises:
        ValueError: not 1 <= k <= len(ballots).
    """
    if not 1 <= k <= len(ballots):
        raise ValueError(f"k must be between 1 and the number of answers, not {k} of {len(ballots)}")
    counts = Counter(vote for vote in ballots if vote is not None)
    abstained = len(ballots) - counts.total()
    total = 0.0
    for vote, count in counts.items():
        if not right.get(vote, False):
            continue
        others = [number for other, number in counts.items() if other != vote]
        for most in range(1, min(count, k) + 1):
            ways = _ways(others, abstained, k - most, most)
            total += comb(count, most) * sum(number / (tied + 1) for tied, number in ways.items())
    return total / comb(len(ballots), k)


def _ways(counts: Sequence[int], abstained: int, drawn: int, most: int) -> dict[int, int]:
    """Return in how many ways `drawn` answers come from these, none from more than `most` of one; by how many have as
    many as `most`."""
    states: dict[tuple[int, int], int] = {(0, 0): 1}
    for count in counts:
        following: dict[tuple[int, int], int] = {}
        for (taken, tied), ways in states.items():
            for number in range(min(count, most, drawn - taken) + 1):
                key = (taken + number, tied + (number == most))
                following[key] = following.get(key, 0) + ways * comb(count, number)
        states = following
    found: dict[int, int] = {}
    for (taken, tied), ways in states.items():
        if drawn - taken <= abstained:
            found[tied] = found.get(tied, 0) + ways * comb(abstained, drawn - taken)
    return found
