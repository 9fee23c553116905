"""The reward of a right answer."""

from __future__ import annotations

from .base import Reward, column
from .math import is_correct
from .samples import Sample


class AccuracyReward(Reward):
    """`right` where the final answer equals the row's right answer, else `wrong`.

    Numbers, options, expressions, lists, sets, tuples and dictionaries are compared as `is_correct` does. A completion
    that its token limit cut off (the row says `finish_reason` "length") and one that ends in a tool call give no
    answer and are wrong. A row whose right answer is None or empty gives no reward.
    """

    def __init__(
        self,
        *,
        rel_tol: float | None = None,
        abs_tol: float = 0.0,
        right: float = 1.0,
        wrong: float = 0.0,
        truth: str = "ground_truth",
        name: str = "accuracy",
    ) -> None:
        """`rel_tol` and `abs_tol` are those of `is_correct`; `truth` is the column of the right answers."""
        super().__init__(name)
        self.rel_tol = rel_tol
        self.abs_tol = abs_tol
        self.right = right
        self.wrong = wrong
        self.truth = truth

    def score(self, sample: Sample) -> float | None:
        """`right` or `wrong`.

        Raises:
            RewardError: the rows have no column of right answers.
        """
        gold = column(sample, self.truth)
        if gold is None or (isinstance(gold, str) and not gold.strip()):
            self.failed("the row has no right answer")
            return None
        if sample.columns.get("finish_reason") == "length":
            return self.wrong
        text = sample.text
        if not text:
            return self.wrong
        return self.right if is_correct(text, gold, rel_tol=self.rel_tol, abs_tol=self.abs_tol) else self.wrong
