"""The service behind the routes: texts are rendered, the batcher scores them, and a response is made of the scores."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ...http import BadRequestError
from .batcher import Batcher
from .rendering import Rendered
from .requests import (
    Messages,
    PairAnswer,
    PairBatchAnswer,
    PairBatchRequest,
    PairRequest,
    ScoreAnswer,
    ScoreBatchAnswer,
    ScoreBatchRequest,
    ScoreRequest,
)
from .reward_model import RewardModel

_STEP: Final = 8
"""Texts that are rendered in one go."""
_CHARACTERS_PER_TOKEN: Final = 16
_CHARACTERS_BESIDE: Final = 64 * 1024
"""A text with more characters than so many for each token that is read, and these, is refused and not cut: most of
the work would be for what is cut off."""
_TIE: Final = 1e-6
"""Scores that differ by less, relative to their size, are equal but for rounding."""


@dataclass(frozen=True)
class _Text:
    messages: Messages
    tools: list[dict[str, Any]] | None
    where: str = ""
    """The field of the request that holds it."""


class ScoringService:
    """Answer requests. Used from one event loop.

    Args:
        model: whose tokenizer renders texts, on a thread beside the event loop.
        batcher: scores them.
        max_items: texts or pairs of the largest request.
    """

    def __init__(self, model: RewardModel, batcher: Batcher, max_items: int) -> None:
        self._model = model
        self._batcher = batcher
        self._max_items = max_items
        self._renderer_thread = ThreadPoolExecutor(1, "score renderer")

    async def score(self, request: ScoreRequest) -> ScoreAnswer:
        """Score one text."""
        [(score, text)] = await self._scored([_Text(request.conversation(), request.tools)])
        return ScoreAnswer(score=score, tokens=len(text.ids), truncated=text.truncated)

    async def score_batch(self, request: ScoreBatchRequest) -> ScoreBatchAnswer:
        """Score many texts."""
        self._check_count(len(request.items))
        found = await self._scored(
            [_Text(item.conversation(), item.tools, f"items[{n}]") for n, item in enumerate(request.items)]
        )
        return ScoreBatchAnswer(
            scores=[score for score, _ in found],
            tokens=[len(text.ids) for _, text in found],
            truncated=[text.truncated for _, text in found],
        )

    async def score_pair(self, request: PairRequest) -> PairAnswer:
        """Compare two answers to one prompt."""
        one, other = await self._scored([_Text(messages, request.tools) for messages in request.conversations()])
        return _compared(one, other)

    async def score_pair_batch(self, request: PairBatchRequest) -> PairBatchAnswer:
        """Compare many pairs."""
        self._check_count(len(request.items))
        found = await self._scored(
            [
                _Text(messages, item.tools, f"items[{n}]")
                for n, item in enumerate(request.items)
                for messages in item.conversations()
            ]
        )
        return PairBatchAnswer(results=[_compared(*found[n : n + 2]) for n in range(0, len(found), 2)])

    def close(self) -> None:
        """Stop rendering."""
        self._renderer_thread.shutdown(wait=False, cancel_futures=True)

    def _check_count(self, items: int) -> None:
        if items > self._max_items:
            raise BadRequestError(f"{items} items, but at most {self._max_items} are taken (max_items)", param="items")

    async def _scored(self, texts: list[_Text]) -> list[tuple[float, Rendered]]:
        """Return the score and the rendered text of each."""
        loop = asyncio.get_running_loop()
        rendered: list[Rendered] = []
        for start in range(0, len(texts), _STEP):  # a step at a time: requests take turns at the one thread
            step = partial(_all_rendered, self._model, texts[start : start + _STEP])
            rendered += await loop.run_in_executor(self._renderer_thread, step)
        return list(zip(await self._batcher.scores(rendered), rendered, strict=True))


def _all_rendered(model: RewardModel, texts: list[_Text]) -> list[Rendered]:
    return [_rendered(model, text) for text in texts]


def _rendered(model: RewardModel, text: _Text) -> Rendered:
    try:
        _check_length(model, text)
        return model.renderer.render(text.messages, text.tools)
    except BadRequestError as error:
        if not text.where:
            raise
        raise BadRequestError(f"{text.where}: {error.message}", param=text.where, code=error.code) from None


def _check_length(model: RewardModel, text: _Text) -> None:
    bound = model.max_length * _CHARACTERS_PER_TOKEN + _CHARACTERS_BESIDE
    if _is_longer([text.messages, text.tools], bound):
        raise BadRequestError(
            f"the text has more than {bound} characters, of which at most {model.max_length} tokens are read: "
            "shorten it, or serve with another `max_length`",
            code="context_length_exceeded",
        )


def _is_longer(value: Any, bound: int) -> bool:
    """Return True if a JSON value has more characters than the bound, about; looks at no more of it than that."""
    size, left = 0, [value]
    while left and size <= bound:
        part = left.pop()
        if isinstance(part, dict | list):
            size += len(part)
            if size <= bound:
                left += [*part, *part.values()] if isinstance(part, dict) else part
        else:
            size += len(part) if isinstance(part, str) else 1
    return size > bound


def _compared(one: tuple[float, Rendered], other: tuple[float, Rendered]) -> PairAnswer:
    (score_a, text_a), (score_b, text_b) = one, other
    margin = score_a - score_b
    tie = abs(margin) <= _TIE * max(1.0, abs(score_a), abs(score_b))
    return PairAnswer(
        score_a=score_a,
        score_b=score_b,
        margin=margin,
        preferred="tie" if tie else "a" if margin > 0 else "b",
        truncated=text_a.truncated or text_b.truncated,
    )
