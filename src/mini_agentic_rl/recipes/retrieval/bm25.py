"""BM25: which documents a query is about.

Robertson and Zaragoza 2009, "The Probabilistic Relevance Framework: BM25 and Beyond", equation 3.15.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

K1: Final = 1.2
"""Saturation: the smaller it is, the sooner further occurrences of a word count for less."""
B: Final = 0.75
"""Strength with which a long document counts for less."""
MAX_WORDS: Final = 32
"""Words of a query that are looked for."""

_WORD: Final = re.compile(r"\w+")


class Index:
    """Documents, found by their words."""

    def __init__(self, documents: Sequence[str]) -> None:
        counts = [Counter(words_of(text)) for text in documents]
        average = sum(count.total() for count in counts) / max(1, len(counts))
        within = Counter(word for count in counts for word in count)
        self._found: dict[str, list[tuple[int, float]]] = {}
        for place, count in enumerate(counts):
            norm = K1 * (1 - B + B * count.total() / max(1.0, average))
            for word, times in count.items():
                weight = math.log(1 + (len(counts) - within[word] + 0.5) / (within[word] + 0.5))
                self._found.setdefault(word, []).append((place, weight * times * (K1 + 1) / (times + norm)))

    def search(self, query: str, count: int) -> list[int]:
        """Return the places of at most `count` documents, the best first; none that has no word of the query."""
        scores: dict[int, float] = {}
        for word in dict.fromkeys(words_of(query)[:MAX_WORDS]):
            for place, score in self._found.get(word, ()):
                scores[place] = scores.get(place, 0.0) + score
        return sorted(scores, key=lambda place: (-scores[place], place))[:count]


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return [word.casefold() for word in _WORD.findall(text)]
