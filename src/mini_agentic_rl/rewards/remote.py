"""The reward of a reward model behind HTTP: the client of `mini-agentic-rl score-server`, and of services like it.

`POST {url}/score/batch {"items": [{"prompt", "response"}, …]}` answers `{"scores": […]}`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..key_header import bearer_header
from .base import FAILED, Reward, Sample, as_messages, encodable

if TYPE_CHECKING:
    from httpx import Client, Response

logger = logging.getLogger(__name__)

_BUSY = (408, 425, 429, 500, 502, 503, 504)
_MAX_PAUSE = 10.0


class ServiceError(RuntimeError):
    """The service refused, could not be reached, or answered without scores."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused
        """True if the service refuses the request, False if it failed itself."""


class RemoteReward(Reward):
    """The scores of a reward service, times `scale`.

    A request to a service that is busy or cannot be reached is repeated, up to `attempts` times in all. A batch that
    the service refuses is halved until only the refused samples have no reward. Calls block: from an event loop use
    `in_thread`.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        batch_size: int = 32,
        timeout: float = 120.0,
        attempts: int = 4,
        scale: float = 1.0,
        name: str = "reward_model",
    ) -> None:
        """
        Args:
            url: URL of the service, without the path.
            api_key: sent as a bearer token.
            batch_size: samples of one request, at most.
            timeout: seconds for one request.
            attempts: requests for one batch, at most.
            scale: factor of every score.
            name: name in logs and metrics.

        Raises:
            ValueError: the URL has no http scheme, or a number is out of range.
            UserError: no header can contain the key.
        """
        super().__init__(name)
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"the URL of a reward service begins with http:// or https://, not {url!r}")
        if batch_size < 1 or attempts < 1 or timeout <= 0:
            raise ValueError("batch_size and attempts must be 1 or more, and timeout above 0")
        self.url = url.rstrip("/")
        self.batch_size = batch_size
        self.timeout = timeout
        self.attempts = attempts
        self.scale = scale
        self._headers = bearer_header(api_key)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_client"}  # connections are not pickled

    def score_all(self, samples: Sequence[Sample]) -> Sequence[float | None]:
        """Return the scores, batch by batch."""
        items = [_item(sample) for sample in samples]
        scores: list[float] = []
        for start in range(0, len(items), self.batch_size):
            scores += self._scores(items[start : start + self.batch_size])
        return [score if score is FAILED else self.scale * score for score in scores]

    def _scores(self, items: list[dict[str, Any]]) -> list[float]:
        """Return the score of each item, halving a batch that is refused."""
        try:
            scores = self._post("/score/batch", {"items": items}).get("scores")
            if not isinstance(scores, list) or len(scores) != len(items):
                raise ServiceError(f"{self.url} did not answer with {len(items)} scores: {str(scores)[:120]}")
            return [_number(score) for score in scores]
        except ServiceError as error:
            if not error.refused or len(items) == 1:
                reason = "refused by the service" if error.refused else "the service failed"
                return [self.failed(reason, error, count=len(items))] * len(items)
        half = len(items) // 2
        return self._scores(items[:half]) + self._scores(items[half:])

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request, after at most `attempts` tries.

        Raises:
            ServiceError: every try failed, or the service refused the request.
        """
        from httpx import HTTPError

        for attempt in range(1, self.attempts + 1):
            pause = min(_MAX_PAUSE, 0.25 * 2**attempt)
            try:
                response = self._client.post(self.url + path, json=body)
            except HTTPError as error:
                problem = f"{type(error).__name__}: {error}"
            else:
                if response.status_code not in _BUSY:
                    return self._answer(path, response)
                problem = f"HTTP {response.status_code}: {response.text[:200]}"
                retry_after = response.headers.get("retry-after", "")
                if retry_after.isdecimal():
                    pause = max(pause, min(_MAX_PAUSE, float(retry_after)))
            logger.debug("%s%s: attempt %d of %d: %s", self.url, path, attempt, self.attempts, problem)
            if attempt < self.attempts:
                time.sleep(pause)
        raise ServiceError(f"{self.url}{path}: {problem}")

    def _answer(self, path: str, response: Response) -> dict[str, Any]:
        if response.status_code >= 400:
            message = f"HTTP {response.status_code}: {response.text[:200]}"
            raise ServiceError(message, refused=response.status_code in (400, 413, 422))
        try:
            answer = response.json()
        except ValueError as error:
            raise ServiceError(f"{self.url}{path} answered no JSON: {error}") from error
        if not isinstance(answer, dict):
            raise ServiceError(f"{self.url}{path} answered {type(answer).__name__}, not an object")
        return answer

    @cached_property
    def _client(self) -> Client:
        from httpx import Client

        return Client(timeout=self.timeout, headers=self._headers)


def _item(sample: Sample) -> dict[str, Any]:
    """Return the request of a sample: prompt and response as text, or the whole conversation."""
    if isinstance(sample.completion, str) and (sample.prompt is None or isinstance(sample.prompt, str)):
        return {"prompt": encodable(sample.prompt or ""), "response": encodable(sample.completion)}
    messages = [*as_messages(sample.prompt, "user"), *as_messages(sample.completion, "assistant")]
    return {"messages": [_encodable(dict(message)) for message in messages]}


def _encodable(value: Any) -> Any:
    """Return a value that a JSON body can carry."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(str(key)): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return encodable(str(value))


def _number(score: Any) -> float:
    """Return a score as a number; nan, and so no reward, where it is none."""
    return float(score) if isinstance(score, int | float) and not isinstance(score, bool) else math.nan
