"""Wordle: find a word of five letters; each guess is answered with absent, present or correct for every letter.

It tests whether a model combines this feedback. The words are in `words.txt`, a list of common English words.
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
"""Reward without the word, in proportion to the correct letters of the best guess."""

History: TypeAlias = Sequence[tuple[str, tuple[str, ...]]]
"""Guesses with their marks."""

_SIZES: Final[Mapping[int, tuple[int | None, int]]] = {1: (4, 2), 2: (8, 3), 3: (20, 4), 4: (None, 6)}
"""Number of words in the question and of guesses, by level; at level 4 any word of the list is a guess."""
_SHARES: Final = ("train",) * 7 + ("val", "test", TRANSFER)
_WORDINGS: Final = "The word is one of: {words}. You have {tries} guesses."
_OPEN: Final = "The word is a common English one. You have {tries} guesses."
_OTHER_WORDING: Final = "I chose one of these words: {words}. Find it within {tries} tries."
_OTHER_OPEN: Final = "I chose a common English word of five letters. Find it within {tries} tries."


@cache
def _pool(foreign: bool) -> tuple[str, ...]:
    """Return the words of `transfer` if `foreign`, else all others."""
    return tuple(word for word in word_list() if (split_of_word(word) == TRANSFER) == foreign)


@cache
def word_list() -> tuple[str, ...]:
    """Return all words, in a shuffled order that is the same on every machine."""
    words = files(__package__).joinpath("words.txt").read_text(encoding="utf-8").split()
    return tuple(sorted(words, key=lambda word: digest(f"order/{word}")))


@cache
def split_of_word(word: str) -> str:
    """Return the split in which a word is an answer."""
    return _SHARES[int(digest(f"wordle/{word}"), 16) % len(_SHARES)]


def marks(guess: str, word: str) -> tuple[str, ...]:
    """Return "correct", "present" or "absent" for each letter; a letter is present at most as often as in the rest of
    the word."""
    unmatched = Counter(right for letter, right in zip(guess, word, strict=True) if letter != right)
    letter_marks: list[str] = []
    for letter, right in zip(guess, word, strict=True):
        if letter == right:
            letter_marks.append("correct")
        elif unmatched[letter] > 0:
            unmatched[letter] -= 1
            letter_marks.append("present")
        else:
            letter_marks.append("absent")
    return tuple(letter_marks)


def feedback(guess: str, word: str) -> str:
    """Return the marks as text, such as "c absent, r present, …"."""
    return ", ".join(f"{letter} {mark}" for letter, mark in zip(guess, marks(guess, word), strict=True))


class Wordle(Episodes):
    """Level 1 has 4 words and 2 guesses, then 8 and 3, 20 and 4; level 4 has 6 guesses among all words.

    Each split has its own answers; the words of `transfer` never occur in training.
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
        """Return a word and its candidates."""
        count, tries = _SIZES[level]
        foreign = split == TRANSFER
        pool = _pool(foreign)
        secret = rng.choice([word for word in pool if split_of_word(word) == split])
        words: list[str] = []
        if count is not None:
            words = [secret, *_alike(rng, secret, pool, count - 1)]
            rng.shuffle(words)
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
        """Begin a task; it needs `answer` and `tries`. Without `words` any word of the list is a guess."""
        return _WordleGame(task)


class _WordleGame(Episode):
    def __init__(self, task: Mapping[str, Any]) -> None:
        self._word = str(field_of(task, "answer", Wordle.name))
        self._tries = int(field_of(task, "tries", Wordle.name))
        self._words: Sequence[str] = [str(word) for word in task.get("words") or ()] or word_list()
        self._history: list[tuple[str, tuple[str, ...]]] = []
        self._guesses = 0
        self._invalid = 0
        self._named: str | None = None

    def receive(self, message: Mapping[str, Any]) -> list[Message]:
        """Return the marks of a guess; nothing if it was the word, or no guesses are left."""
        self._guesses += 1
        named = [word for word in _WORD.findall(message_text(message).casefold()) if word in self._words]
        self._named = named[-1] if named else None
        line = last_line(message, "Guess")
        guess = None if line is None else line.casefold()
        if guess is None or guess not in self._words:
            self._invalid += 1
            answer = 'Say one of the words, as in "Guess: word".'
        else:
            self._history.append((guess, marks(guess, self._word)))
            if guess == self._word:
                return []
            answer = feedback(guess, self._word)
        return [user(answer)] if self._guesses < self._tries else []

    def scores(self) -> dict[str, float]:
        """Return the reward (1 for the word, else up to `NEARLY` by the best guess), the number of guesses and of
        invalid ones, the share of guesses consistent with the marks, and whether the last word in any form was right.
        """
        found = any(guess == self._word for guess, _ in self._history)
        best = max((letter_marks.count("correct") for _, letter_marks in self._history), default=0)
        agreed = sum(_agrees(guess, self._history[:at]) for at, (guess, _) in enumerate(self._history))
        return {
            "reward": 1.0 if found else NEARLY * best / LETTERS,
            "guesses": float(self._guesses),
            "invalid": float(self._invalid),
            "consistent": agreed / max(1, self._guesses),
            "lenient": float(found or self._named == self._word),
        }

    def expert(self) -> Message:
        """Return the first word that is consistent with all marks."""
        return assistant(f"Guess: {_next_guess(self._words, self._history)}")


def _agrees(word: str, history: History) -> bool:
    return all(marks(guess, word) == letter_marks for guess, letter_marks in history)


def _next_guess(words: Sequence[str], history: History) -> str:
    return next(word for word in words if _agrees(word, history))


def _can_be_found(secret: str, words: Sequence[str], tries: int) -> bool:
    """Return True if the expert finds a word in time; other words are not used."""
    history: list[tuple[str, tuple[str, ...]]] = []
    for _ in range(tries):
        guess = _next_guess(words, history)
        if guess == secret:
            return True
        history.append((guess, marks(guess, secret)))
    return False


def _alike(rng: random.Random, secret: str, pool: Sequence[str], count: int) -> list[str]:
    """Return other words, a third of them with two or more letters of the secret in place, so that one guess is not
    enough."""
    others = [word for word in pool if word != secret]
    near = [word for word in others if sum(map(operator.eq, word, secret)) >= 2]
    chosen = rng.sample(near, min(len(near), count // 3))
    return [*chosen, *rng.sample([word for word in others if word not in chosen], count - len(chosen))]
