"""Guess the number: the user answers each guess with higher or lower.

It tests whether a model keeps track of the answers: bisection always finds the number within the allowed guesses.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from ...datasets import TRANSFER, Message, Row, assistant, user
from ...environments import Episode, Episodes, belongs, field_of, last_line, number_of

NARROWED: Final = 0.4
"""Largest reward without the number, in proportion to how far the range was narrowed down."""

_COUNTS: Final = {1: 7, 2: 15, 3: 63, 4: 1023}
"""Size of the range by level; bisection needs 3, 4, 6 and 10 guesses."""
_WORDS: Final = ("I think of a number from {low} to {high}. You have {tries} guesses.", "higher", "lower")
_OTHER_WORDS: Final = (
    ("My secret number lies between {low} and {high}, both included. Find it in {tries} guesses.", "more", "less"),
    ("Find the page of the book that I have open: {low} to {high}. You may ask {tries} times.", "later", "earlier"),
    ("The parcel weighs {low} to {high} grams. Name its weight in {tries} tries.", "heavier", "lighter"),
)


class GuessTheNumber(Episodes):
    """The levels have 7, 15, 63 and 1023 numbers. `transfer` has other wordings, answers and ranges."""

    name: ClassVar[str] = "guess"
    prompt: ClassVar[str] = (
        "Find the number. Each time write the lowest and the highest number that it can still be, then a line "
        '"Guess: N" with the one in the middle.'
    )
    max_turns: ClassVar[int] = 10
    max_new_tokens: ClassVar[int] = 24

    def draw(self, rng: random.Random, split: str, level: int) -> Row | None:
        """Return a range and a number in it."""
        count = _COUNTS[level]
        low = rng.randint(2001, 4000) if split == TRANSFER else rng.randint(1, 900)
        secret = rng.randint(low, low + count - 1)
        if not belongs(f"{low} {low + count - 1}", split):  # the question depends on the range only
            return None
        words = rng.choice(_OTHER_WORDS) if split == TRANSFER else _WORDS
        tries = (count + 1).bit_length() - 1
        return {
            "key": f"{low} {low + count - 1} {secret}",
            "question": words[0].format(low=low, high=low + count - 1, tries=tries),
            "answer": str(secret),
            "low": low,
            "high": low + count - 1,
            "tries": tries,
            "higher": words[1],
            "lower": words[2],
        }

    def start(self, task: Mapping[str, Any]) -> Episode:
        """Begin a task; it needs `answer`, `low`, `high` and `tries`."""
        return _Game(task)


class _Game(Episode):
    def __init__(self, task: Mapping[str, Any]) -> None:
        name = GuessTheNumber.name
        self._secret = int(field_of(task, "answer", name))
        self._low, self._high = int(field_of(task, "low", name)), int(field_of(task, "high", name))
        self._count = self._high - self._low + 1
        self._tries = int(field_of(task, "tries", name))
        self._words = str(task.get("higher", _WORDS[1])), str(task.get("lower", _WORDS[2]))
        self._guesses = 0
        self._invalid = 0
        self._found = False

    def receive(self, message: Mapping[str, Any]) -> list[Message]:
        """Return whether the number is higher or lower; nothing if it was found, or no guesses are left."""
        self._guesses += 1
        line = last_line(message, "Guess")
        number = None if line is None else number_of(line)
        if number is None or "." in number:
            self._invalid += 1
            answer = 'Say one number, as in "Guess: 5".'
        elif int(number) == self._secret:
            self._found = True
            return []
        else:
            guess = int(number)
            answer = self._words[0] if guess < self._secret else self._words[1]
            if guess < self._secret:
                self._low = max(self._low, guess + 1)
            else:
                self._high = min(self._high, guess - 1)
        return [user(answer)] if self._guesses < self._tries else []

    def scores(self) -> dict[str, float]:
        """Return the reward (1 for the number, else up to `NARROWED`), and the numbers of guesses and invalid ones."""
        left = math.log(self._high - self._low + 1) / math.log(max(2, self._count))
        return {
            "reward": 1.0 if self._found else NARROWED * max(0.0, 1 - left),
            "guesses": float(self._guesses),
            "invalid": float(self._invalid),
        }

    def expert(self) -> Message:
        """Return the remaining range and its middle."""
        middle = (self._low + self._high) // 2
        return assistant(f"{self._low} to {self._high}\nGuess: {middle}")
