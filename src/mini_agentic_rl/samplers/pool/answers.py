"""Answers, from the server that a request is given to, or from several where one is lost on the way."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ...http import BadRequestError, OverloadedError
from ...tokens import FinishReason, SamplingParams, TokenDelta, TokenRequest
from ..wire import Generation, ReplicaLostError, RequestRefusedError, TokenChunk
from .members import Members
from .probing import Probing
from .publications import Publication, Publications

_TRIES: Final = 5
"""Servers that a request may be lost with: it may be what ends them."""
_WHOLE: Final = 32
"""Tokens that wait for each other on the way of an answer that nobody reads along."""
_JOINED: Final = 4


class Answers:
    """Samples the answers to requests. Used from the pool's event loop only.

    Args:
        members: the servers.
        publications: the weights that requests begin with.
        probing: takes note of prompts.
        unused: called when weights may have become unused.
    """

    def __init__(
        self, members: Members, publications: Publications, probing: Probing, unused: Callable[[], None]
    ) -> None:
        self.open = asyncio.Event()
        """Cleared while no request may begin, because all weights of the servers are replaced."""
        self.open.set()
        self.idle = asyncio.Event()
        """Set while no request is under way."""
        self.idle.set()
        self.waiting = 0
        self.moved = 0
        """Answers that went on at another server."""
        self.sampled_tokens = 0
        self._under_way = 0
        self._members = members
        self._publications = publications
        self._probing = probing
        self._unused = unused

    async def answer(self, request: TokenRequest, post: Callable[[TokenDelta], None]) -> None:
        """Sample one continuation; `post` is called with its deltas, the finish reason last.

        Raises:
            HttpError: it cannot be sampled.
        """
        self.waiting += 1
        try:
            await self.open.wait()
        finally:
            self.waiting -= 1
        publication = None if request.adapter is None else self._publications.current.get(request.adapter)
        if request.adapter is not None and publication is None:
            raise OverloadedError(f"No weights of {request.adapter!r} have been published yet. Try again shortly.")
        self._probing.remember(request.prompt_ids)
        self._under_way += 1
        self.idle.clear()
        growing = _Growing(request, publication, post)
        if publication is not None:
            publication.users += 1
        try:
            await self._sample(request, publication, growing)
        finally:
            self.sampled_tokens += len(growing.token_ids)
            self._under_way -= 1
            if not self._under_way:
                self.idle.set()
            if publication is not None:
                publication.users -= 1
                if not publication.users and publication in self._publications.older:
                    self._unused()

    async def _sample(self, request: TokenRequest, publication: Publication | None, growing: _Growing) -> None:
        for _ in range(_TRIES):
            reason = growing.reason
            if reason is not None:
                growing.end(reason)
                return
            replica = await self._members.choose(request.affinity, publication)
            try:
                await replica.sample(growing.rest(replica.facts.model), growing.take, self._members.silence)
            except ReplicaLostError as error:
                self._members.lose(replica, error)
                self.moved += 1
            except RequestRefusedError as error:
                raise BadRequestError(f"the server that samples refuses the request: {error.text}") from error
            else:
                return
            sampling = request.sampling
            penalised = sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1
            if growing.token_ids and penalised:  # another server would not know what is to be punished
                break
        raise OverloadedError("The servers that sample were lost one after the other. Try again shortly.")


class _Growing:
    """One answer as it grows, whoever samples it."""

    def __init__(
        self, request: TokenRequest, publication: Publication | None, post: Callable[[TokenDelta], None]
    ) -> None:
        self.token_ids: list[int] = []
        self._request = request
        self._publication = publication
        self._post = post
        self._held: list[TokenDelta] = []

    @property
    def reason(self) -> FinishReason | None:
        """Reason for which the answer is complete, though the server that sampled it has not said so."""
        sampling = self._request.sampling
        if self.token_ids and self.token_ids[-1] in sampling.stop_token_ids:
            return "stop"
        return "length" if len(self.token_ids) >= sampling.max_tokens else None

    def rest(self, model: str) -> Generation:
        """Return what is still to be sampled: what was sampled is part of the prompt."""
        request, publication = self._request, self._publication
        return Generation(
            model=model,
            adapter=None if publication is None or not publication.name else publication.name,
            prompt_ids=(*request.prompt_ids, *self.token_ids),
            sampling=_rest(request.sampling, len(self.token_ids)),
            salt="base" if publication is None else publication.salt,
            at_a_time={"whole": _WHOLE, "joined": _JOINED}.get(request.delivery, 1),
        )

    def take(self, chunk: TokenChunk) -> None:
        self.token_ids += chunk.token_ids
        self._give(
            TokenDelta(
                token_ids=chunk.token_ids,
                logprobs=chunk.logprobs,
                top_logprobs=chunk.top_logprobs,
                finish_reason=chunk.finish_reason,
                version=0 if self._publication is None else self._publication.version,
                cached_tokens=chunk.cached_tokens,
            )
        )

    def end(self, reason: FinishReason) -> None:
        """Say that the answer is complete."""
        self.take(TokenChunk(finish_reason=reason))

    def _give(self, delta: TokenDelta) -> None:
        if self._request.delivery != "whole":
            self._post(delta)
            return
        self._held.append(delta)
        if delta.finish_reason is not None:
            for held in self._held:
                self._post(held)


def _rest(sampling: SamplingParams, done: int) -> SamplingParams:
    """Return the settings of a continuation that goes on after so many tokens, with draws of its own."""
    if not done:
        return sampling
    seed = sampling.seed
    if seed is not None:
        seed = int.from_bytes(hashlib.blake2b(f"{seed}/{done}".encode(), digest_size=8).digest(), "big") >> 1
    least = max(0, sampling.min_tokens - done)
    return replace(sampling, max_tokens=sampling.max_tokens - done, min_tokens=least, seed=seed)
