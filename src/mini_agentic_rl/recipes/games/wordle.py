"""Wordle: find a word of five letters; after each guess every letter is told to be absent, present or correct.

It tests whether a model puts together what it was told of each letter. The words come from a list of common English
words beside this file.
"""

from __future__ import annotations

import operator
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Final, TypeAlias

from ...datasets import TRANSFER, Message, Row, assistant, digest, user
from ...environments import Episode, Episodes, field_of, last_line
from ...rewards import message_text

LETTERS: Final = 5
_WORD: Final = re.compile(rf"\b[a-z]{{{LETTERS}}}\b")
NEARLY: Final = 0.4
"""Reward of a word not found whose best guess had every letter right; less in proportion."""

Told: TypeAlias = Sequence[tuple[str, tuple[str, ...]]]
"""Guesses with their marks."""

_SIZES: Final[Mapping[int, tuple[int | None, int]]] = {1: (4, 2), 2: (8, 3), 3: (20, 4), 4: (None, 6)}
"""Words that a level names, and the number of guesses; level 4 names none, and takes any word of the list."""
_SHARES: Final = ("train",) * 7 + ("val", "test", TRANSFER)
_WORDINGS: Final = "The word is one of: {words}. You have {tries} guesses."
_OPEN: Final = "The word is a common English one. You have {tries} guesses."
_OTHER_WORDING: Final = "I chose one of these words: {words}. Find it within {tries} tries."
_OTHER_OPEN: Final = "I chose a common English word of five letters. Find it within {tries} tries."


@cache
def _pool(foreign: bool) -> tuple[str, ...]:
    """Return the words of `transfer`, or all others."""
    return tuple(word for word in word_list() if (share_of(word) == TRANSFER) == foreign)


@cache
def word_list() -> tuple[str, ...]:
    """Return all words, in an order that is mixed and the same on every machine."""
    words = files(__package__).joinpath("words.txt").read_text(encoding="utf-8").split()
    return tuple(sorted(words, key=lambda word: digest(f"order/{word}")))


@cache
def share_of(word: str) -> str:
    """Return the split in which a word is to be found."""
    return _SHARES[int(digest(f"wordle/{word}"), 16) % len(_SHARES)]


def marks(guess: str, word: str) -> tuple[str, ...]:
    """Return "correct", "present" or "absent" for each letter; a letter is present no more often than the word has it
    left."""
    left = Counter(there for said, there in zip(guess, word, strict=True) if said != there)
    found = []
    for said, there in zip(guess, word, strict=True):
        if said == there:
            found.append("correct")
        elif left[said] > 0:
            left[said] -= 1
            found.append("present")
        else:
            found.append("absent")
    return tuple(found)


def feedback(guess: str, word: str) -> str:
    """Return the marks as the model reads them, as in "c absent, r present, …"."""
    return ", ".join(f"{letter} {mark}" for letter, mark in zip(guess, marks(guess, word), strict=True))


class Wordle(Episodes):
    """Level 1 names 4 words and gives 2 guesses, then 8 and 3, 20 and 4; level 4 names none and gives 6.

    The words to be found differ from split to split; those of `transfer` are never shown in training at all.
    """

    name: ClassVar[str] = "wordle"
    prompt: ClassVar[str] = (
        "Find the word of five letters. Each time write a line "
        '"Guess: word" that agrees with all that you were told: absent letters are not in the word, '
        "present ones stand elsewhere, correct ones stand there."
    )
    max_turns: ClassVar[int] = 6
    max_new_tokens: ClassVar[int] = 16

    def draw(self, rng: random.Random, split: str, level: int) -> Row | None:
        """Return a word, and the words among which it is."""
        count, tries = _SIZES[level]
        foreign = split == TRANSFER
        pool = _pool(foreign)
        secret = rng.choice([word for word in pool if share_of(word) == split])
        words: list[str] = []
        if count is not None:
            words = _mixed(rng, [secret, *_alike(rng, secret, pool, count - 1)])
        if not _can_be_found(secret, words or word_list(), tries):
            return None
        wording = (_OTHER_WORDING if foreign else _WORDINGS) if words else (_OTHER_OPEN if foreign else _OPEN)
        return {
            "key": f"{level} {secret} {' '.join(sorted(words))}",
            "question": wording.format(words=", ".join(words), tries=tries),
            "answer": secret,
            "words": words,
            "tries": tries,
        }

    def start(self, task: Mapping[str, Any]) -> Episode:
        """Begin a task; it needs `answer` and `tries`. Without `words` any of the list is a guess."""
        return _WordleGame(task)


class _WordleGame(Episode):
    def __init__(self, task: Mapping[str, Any]) -> None:
        self._word = str(field_of(task, "answer", Wordle.name))
        self._tries = int(field_of(task, "tries", Wordle.name))
        self._words: Sequence[str] = [str(word) for word in task.get("words") or ()] or word_list()
        self._told: list[tuple[str, tuple[str, ...]]] = []
        self._guesses = 0
        self._invalid = 0
        self._named: str | None = None

    def receive(self, message: Mapping[str, Any]) -> list[Message]:
        """Tell the marks of a guess; nothing where it was the word, or there are no guesses left."""
        self._guesses += 1
        named = [word for word in _WORD.findall(message_text(message).casefold()) if word in self._words]
        self._named = named[-1] if named else None
        said = last_line(message, "Guess")
        guess = None if said is None else said.casefold()
        if guess is None or guess not in self._words:
            self._invalid += 1
            told = 'Say one of the words, as in "Guess: word".'
        else:
            self._told.append((guess, marks(guess, self._word)))
            if guess == self._word:
                return []
            told = feedback(guess, self._word)
        return [user(told)] if self._guesses < self._tries else []

    def scores(self) -> dict[str, float]:
        """Return 1 for the word, else up to `NEARLY` by the best guess; guesses, those that were no word, the share of
        those that agree with what was told, and whether the last word named, in whatever form, is the one."""
        found = any(guess == self._word for guess, _ in self._told)
        best = max((told.count("correct") for _, told in self._told), default=0)
        agreed = sum(_agrees(guess, self._told[:at]) for at, (guess, _) in enumerate(self._told))
        return {
            "reward": 1.0 if found else NEARLY * best / LETTERS,
            "guesses": float(self._guesses),
            "invalid": float(self._invalid),
            "consistent": agreed / max(1, self._guesses),
            "lenient": float(found or self._named == self._word),
        }

    def expert(self) -> Message:
        """Return the first of the words that agrees with all that was told."""
        return assistant(f"Guess: {_next_guess(self._words, self._told)}")


def _agrees(word: str, told: Told) -> bool:
    return all(marks(guess, word) == found for guess, found in told)


def _next_guess(words: Sequence[str], told: Told) -> str:
    """Return the first word that agrees with all that was told."""
    return next(word for word in words if _agrees(word, told))


def _can_be_found(secret: str, words: Sequence[str], tries: int) -> bool:
    """Return True if the expert finds a word in time; what it does not is not asked."""
    told: list[tuple[str, tuple[str, ...]]] = []
    for _ in range(tries):
        guess = _next_guess(words, told)
        if guess == secret:
            return True
        told.append((guess, marks(guess, secret)))
    return False


def _alike(rng: random.Random, secret: str, pool: Sequence[str], count: int) -> list[str]:
    """Return other words: a few that share places with the secret, so that one guess does not tell all, and any."""
    others = [word for word in pool if word != secret]
    near = [word for word in others if sum(map(operator.eq, word, secret)) >= 2]
    chosen = rng.sample(near, min(len(near), count // 3))
    return [*chosen, *rng.sample([word for word in others if word not in chosen], count - len(chosen))]


def _mixed(rng: random.Random, words: list[str]) -> list[str]:
    rng.shuffle(words)
    return words
