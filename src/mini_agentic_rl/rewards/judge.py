"""The reward of a language model that judges by a rubric, behind any OpenAI-compatible endpoint."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from .base import Reward, Sample
from .rubric import Criterion, JudgementError, Rubric, as_rubric, judge_messages, read_judgement

if TYPE_CHECKING:
    from openai import OpenAI

T = TypeVar("T")

logger = logging.getLogger(__name__)


class JudgeReward(Reward):
    """From 0 to 1: the weighted mean of a judge's scores.

    A judgement that fails, as when the endpoint is out of reach or the reply holds no scores, is asked for again, up to
    `attempts` times; a sample that is not judged even then has no reward. Calls run on threads, `concurrency` at a
    time; from an event loop use `in_thread`.
    """

    def __init__(
        self,
        rubric: str | Sequence[Criterion] | Rubric,
        *,
        model: str,
        base_url: str | None = None,
        api_key: str | None = None,
        reference: str | None = "ground_truth",
        temperature: float = 0.0,
        max_tokens: int = 512,
        max_chars: int = 20_000,
        timeout: float = 60.0,
        attempts: int = 3,
        concurrency: int = 8,
        name: str = "judge",
    ) -> None:
        """
        Args:
            rubric: what to judge: a sentence, several criteria, or a whole rubric.
            model: name of the model at the endpoint.
            base_url: of the endpoint; None takes OPENAI_BASE_URL, else OpenAI's.
            api_key: None takes OPENAI_API_KEY.
            reference: the column with the reference answer, where the rows have it; None gives the judge none.
            temperature: of the judge's sampling.
            max_tokens: of the judge's reply.
            max_chars: of each text that the judge is shown; the middle of a longer one is left out.
            timeout: seconds for one call.
            attempts: calls for one judgement, at most.
            concurrency: calls at the same time, at most.
            name: what logs and metrics call it.

        Raises:
            ValueError: the rubric is malformed, or a number is out of range.
        """
        super().__init__(name)
        if attempts < 1 or concurrency < 1 or max_chars < 1 or timeout <= 0:
            raise ValueError("attempts, concurrency and max_chars must be 1 or more, and timeout above 0")
        self.rubric = as_rubric(rubric)
        self.model = model
        self.base_url = base_url
        self.reference = reference
        self.temperature = temperature
        self.max_tokens = max_tokens
        self.max_chars = max_chars
        self.timeout = timeout
        self.attempts = attempts
        self.concurrency = concurrency
        self._api_key = api_key
        self._structured = True
        self._client: OpenAI | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}  # connections stay in their process

    def score_all(self, samples: Sequence[Sample]) -> Sequence[float | None]:
        """Return the scores, several at the same time."""
        if not samples:
            return []
        with ThreadPoolExecutor(min(self.concurrency, len(samples)), "judge") as threads:
            return list(threads.map(self._score_safely, samples))

    def score(self, sample: Sample) -> float | None:
        """Return the judge's score of one sample.

        Raises:
            openai.OpenAIError: the endpoint refused the last call or could not be reached.
            JudgementError: the last reply held no scores.
        """
        given = sample.columns.get(self.reference) if self.reference is not None else None
        reference = None if given is None else str(given)
        messages = judge_messages(self.rubric, sample.question, sample.text, reference, max_chars=self.max_chars)
        return self.asked(messages, self.rubric, read_judgement)

    def asked(self, messages: list[dict[str, str]], rubric: Rubric, read: Callable[[Rubric, str], T]) -> T:
        """Return what `read` makes of the judge's reply to `messages`, which ask for the scores of `rubric`.

        Raises:
            openai.OpenAIError: the endpoint refused the last call or could not be reached.
            JudgementError: the last reply held no scores.
        """
        from openai import APIConnectionError, APIStatusError, OpenAIError

        failure: OpenAIError | JudgementError
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(_pause(attempt))
            try:
                return read(rubric, self._ask(messages, attempt, rubric))
            except APIStatusError as error:
                if error.status_code < 500 and error.status_code not in (408, 409, 429):
                    raise
                failure = error
            except (APIConnectionError, JudgementError) as error:
                failure = error
            logger.debug("judgement %d of %d failed: %s", attempt + 1, self.attempts, failure)
        raise failure

    def _ask(self, messages: list[dict[str, str]], attempt: int, rubric: Rubric) -> str:
        """Return the judge's reply. An endpoint that refuses a JSON schema is asked without one from then on."""
        from openai import BadRequestError, UnprocessableEntityError

        options: dict[str, Any] = {
            "model": self.model,
            "messages": messages,
            "temperature": self.temperature if attempt == 0 else max(self.temperature, 0.3),
            "max_tokens": self.max_tokens,
        }
        if self._structured:
            schema = {"name": "judgement", "schema": rubric.schema, "strict": True}
            try:
                return self._complete({**options, "response_format": {"type": "json_schema", "json_schema": schema}})
            except (BadRequestError, UnprocessableEntityError) as error:
                reply = self._complete(options)
                logger.info("the judge takes no JSON schema and is asked without: %s", error)
                self._structured = False
                return reply
        return self._complete(options)

    def _complete(self, options: dict[str, Any]) -> str:
        completion = self._connected().chat.completions.create(**options)
        content = completion.choices[0].message.content if completion.choices else None
        return content or ""

    def _connected(self) -> OpenAI:
        from openai import OpenAI

        with _CONNECTING:
            if self._client is None:
                # a local endpoint needs no key, but the SDK wants one
                key = self._api_key or os.environ.get("OPENAI_API_KEY") or "none"
                self._client = OpenAI(base_url=self.base_url, api_key=key, timeout=self.timeout, max_retries=0)
            return self._client


_CONNECTING = threading.Lock()


def _pause(attempt: int) -> float:
    """Seconds before a further attempt: 0.5, 1, 2, … and 8 at most."""
    return float(min(8.0, 0.25 * 2**attempt))
