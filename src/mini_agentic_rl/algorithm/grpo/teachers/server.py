"""A teacher behind HTTP: a server that tells the log-probabilities of a prompt, as vLLM does.

`POST {address}/completions` with token ids as the prompt and `prompt_logprobs: K` answers, in its first choice, a list
with an entry for each token of the prompt: `{id: {"logprob": …}}` of the K likeliest tokens in its place and of the
token itself; the first has none. The server has to have the policy's tokenizer, and tells log-probabilities of
temperature 1. A rollout's calls that continue each other are one request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....errors import UserError
from ....tokens import CompletionRecord
from ...losses.base import Floats, Ints

if TYPE_CHECKING:
    from httpx import Client

    from ..batch import TrainingBatch

API_KEY = "TEACHER_API_KEY"
"""Variable of the environment with the key of the server."""

_AT_ONCE = 8
_ATTEMPTS = 4
_BUSY = (408, 425, 429, 500, 502, 503, 504)

Places = Sequence[Mapping[int, float]]
"""For each token of a sequence, log-probabilities by id: of the likeliest tokens in its place, and of itself."""


class ServerTeacher:
    """The log-probabilities that a server gives to the policy's tokens."""

    def __init__(self, address: str, model: str, *, timeout: float = 300.0) -> None:
        """
        Args:
            address: up to and with the version, as http://localhost:8000/v1.
            model: the name that the server has for it.
            timeout: seconds of one request.
        """
        self._address = address.rstrip("/")
        self._model = model
        self._timeout = timeout
        self._client: Client | None = None

    def logprobs(self, batch: TrainingBatch) -> Floats:
        found_S = batch.packed.behaviour_logprobs_S.astype(np.float64)
        if batch.calls:
            found_S[: batch.sampled_terms] = [
                place[int(token)]
                for record, places in self._each_call(batch, 0)
                for token, place in zip(_trained_ids(record), places, strict=True)
            ]
        return found_S

    def likeliest(self, batch: TrainingBatch, count: int) -> tuple[Ints | None, npt.NDArray[np.float32]]:
        tokens_SK = np.zeros((batch.packed.term_count, count), np.int64)
        logprobs_SK = np.zeros((batch.packed.term_count, count), np.float32)
        found = [place for _, places in self._each_call(batch, count) for place in places] if batch.calls else []
        for term, place in enumerate(found):
            best = sorted(place.items(), key=lambda pair: -pair[1])[:count]
            if len(best) < count:
                raise UserError(
                    f"{self._address} tells {len(best)} log-probabilities for a token, of {count}: start it with "
                    "`--max-logprobs`, or lower `teacher_top_k`",
                    setting="teacher_top_k",
                )
            tokens_SK[term], logprobs_SK[term] = zip(*best, strict=True)
        return tokens_SK, logprobs_SK

    def _each_call(self, batch: TrainingBatch, count: int) -> list[tuple[CompletionRecord, Places]]:
        """Return the trained tokens' places of each call of the batch."""
        records = [call.record for call in batch.calls]
        wholes = [(*record.prompt_ids.tolist(), *record.output_ids.tolist()) for record in records]
        asked = longest(wholes)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            told = dict(zip(asked, pool.map(lambda ids: self._ask(ids, count), asked), strict=True))
        found: list[tuple[CompletionRecord, Places]] = []
        for record, ids in zip(records, wholes, strict=True):
            covering = next(one for one in asked if one[: len(ids)] == ids)
            places = told[covering][record.prompt_ids.size : len(ids)]
            kept = [True] * len(places) if record.forced is None else (~record.forced).tolist()
            found.append((record, [place for place, keep in zip(places, kept, strict=True) if keep]))
        return found

    def _ask(self, ids: Sequence[int], count: int) -> list[dict[int, float]]:
        """Return the places of one sequence; the first one is empty."""
        body = {
            "model": self._model,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": count,
        }
        answer = self._post("/completions", body)
        try:
            rows = answer["choices"][0]["prompt_logprobs"]
            found = [{int(id_): float(one["logprob"]) for id_, one in (row or {}).items()} for row in rows]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"{self._address} tells no `prompt_logprobs` as vLLM does: {type(error).__name__}: {error}",
                setting="teacher",
            ) from error
        if len(found) != len(ids) or any(id_ not in place for id_, place in zip(ids[1:], found[1:], strict=True)):
            raise UserError(
                f"{self._address} tells log-probabilities of other tokens than the {len(ids)} that it was given",
                setting="teacher",
            )
        return found

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the answer to one request, asked again while the server is busy or out of reach.

        Raises:
            UserError: it gave none.
        """
        from httpx import HTTPError

        for attempt in range(1, _ATTEMPTS + 1):
            try:
                response = self._connected().post(self._address + path, json=body)
                if response.status_code < 400:
                    return response.json()
                problem = f"{response.status_code}: {response.text[:200]}"
                if response.status_code not in _BUSY:
                    break
            except (HTTPError, ValueError) as error:
                problem = f"{type(error).__name__}: {error}"
            if attempt < _ATTEMPTS:
                time.sleep(0.25 * 2**attempt)
        raise UserError(f"the teacher {self._address}{path} gave no answer: {problem}", setting="teacher")

    def _connected(self) -> Client:
        from httpx import Client

        if self._client is None:
            key = os.environ.get(API_KEY)
            self._client = Client(timeout=self._timeout, headers={"Authorization": f"Bearer {key}"} if key else {})
        return self._client


def longest(sequences: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the sequences that no other one continues, each once."""
    found: list[tuple[int, ...]] = []
    for ids in sorted(set(sequences)):  # one that continues another comes after it, with none between them but such
        if found and ids[: len(found[-1])] == found[-1]:
            found[-1] = ids
        else:
            found.append(ids)
    return found


def _trained_ids(record: CompletionRecord) -> npt.NDArray[np.int64]:
    return record.output_ids if record.forced is None else record.output_ids[~record.forced]
