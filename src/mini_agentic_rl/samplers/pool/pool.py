"""`SamplerPool`: the sampler that is made of servers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import shutil
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from ...errors import UserError
from ...files import one_writer
from ...http import BadRequestError, OverloadedError
from ...tokens import TokenDelta, TokenRequest
from ..base import ContextLengthError, SamplerLoad
from ..hand_over import HandOver
from ..parity import Parity
from ..wire import ReplicaLostError, RequestRefusedError
from .answers import Answers
from .members import Members
from .probing import Probing, refused
from .publications import Publication, Publications, runs_left_in
from .replica import Replica, reached

logger = logging.getLogger(__name__)

T = TypeVar("T")
_GOODBYE_SECONDS: Final = 10.0


class SamplerPool:
    """Samples from servers.

    Args:
        replicas: the servers.
        base_name: name under which requests ask for the model without an adapter.
        adapters: names of the adapters, under which requests ask for them.
        context_length: the most tokens that the learner takes.
        rank: of the adapters; None where all weights are trained.
        folder: where new weights are written for the servers.
        run: tells the names of this run from those that others have left on a server.
        probing: compares what servers sample with the learner.
        timeout: seconds to wait for a server where none is well.
        silence: see `Replica.sample`.
        end: ends the servers, where they were started for this pool.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        base_name: str,
        adapters: Sequence[str],
        context_length: int,
        rank: int | None,
        folder: Path,
        run: str,
        probing: Probing,
        timeout: float,
        silence: float,
        end: Callable[[], None] | None = None,
    ) -> None:
        self.model_names = (base_name, *adapters)
        self.context_length = context_length
        self.replicas = tuple(replicas)
        self._rank = rank
        self._end = end
        self._left = runs_left_in(folder)
        self._folder = folder / run
        self._folder.mkdir(parents=True)  # not a private folder, as a lock would make: servers of other users read it
        self._locked = contextlib.ExitStack()
        self._locked.enter_context(one_writer(self._folder, setting="sampler_folder"))
        self._probing = probing
        self._hand_over: HandOver | None = None
        self._publications = Publications(self._folder, run, self._left)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sampler-pool", daemon=True)
        self._thread.start()
        self._members, self._answers = self._call(self._made(timeout, silence))
        self._watches: list[asyncio.Task[None]] = []
        self._tidying: set[asyncio.Task[None]] = set()

    async def _made(self, timeout: float, silence: float) -> tuple[Members, Answers]:
        """Make what belongs to the event loop on it."""
        members = Members(
            self.replicas, self._publications, self._probing, timeout=timeout, silence=silence, rank=self._rank
        )
        return members, Answers(members, self._publications, self._probing, self._tidy)

    def connect(
        self, least_context: int = 1, wait: float = 0.0, note: Callable[[str], None] = lambda text: None
    ) -> None:
        """Reach each server, and see that it is one that can be sampled from. Blocks.

        Args:
            least_context: tokens that an answer may have, for which there has to be room.
            wait: seconds in which all of them have to have come up.
            note: told of what is waited for.

        Raises:
            UserError: one of them is not; the message says what to change.
        """
        self._call(self._connect(least_context, time.monotonic() + wait, note))

    async def _connect(self, least_context: int, end: float, note: Callable[[str], None]) -> None:
        for replica in self.replicas:
            try:
                replica.facts = await reached(replica, end, note)
                await self._members.unload(replica, replica.facts.adapters)
                if self._rank is not None:  # a model that is trained in full is compared when it is published
                    await self._probing.check(replica, None, self._members.silence)
            except ReplicaLostError as error:
                raise UserError(
                    f"no sampler answers at {replica.url}: {error}; is the address right (`sampler_url`), and does it "
                    "need longer to start?",
                    setting="sampler_wait",
                ) from error
            except RequestRefusedError as error:
                raise refused(replica.url, error, self._rank) from error
            room = replica.facts.context_length or self.context_length
            if room <= least_context:
                raise UserError(
                    f"the server {replica.url} has room for {room} tokens, prompt and answer together, but answers "
                    f"may have {least_context} (`max_new_tokens`): start it with a larger --max-model-len",
                    setting="sampler_url",
                )
            self.context_length = min(self.context_length, room)
            replica.well = True
        self._watches = [asyncio.create_task(self._members.watch(replica)) for replica in self.replicas]
        for folder in self._left.values():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def load(self) -> SamplerLoad:
        """See `Sampler.load`."""
        running = sum(replica.under_way for replica in self.replicas)
        return SamplerLoad(sequences={"running": running, "waiting": self._answers.waiting})

    @property
    def sampled_tokens(self) -> int:
        """See `Sampler.sampled_tokens`."""
        return self._answers.sampled_tokens

    @property
    def parities(self) -> dict[str, Parity]:
        """The last comparison of each server with the learner, by its address."""
        return {replica.url: replica.parity for replica in self.replicas if replica.parity is not None}

    @property
    def parity_bound(self) -> float:
        """Mean difference that is taken for rounding (nats)."""
        return self._probing.bound

    @property
    def moved(self) -> int:
        """Answers that went on at another server, because theirs was lost."""
        return self._answers.moved

    async def complete(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `Sampler.complete`."""
        if request.constraint is not None:
            raise BadRequestError(
                "answers of a given form (a JSON schema, strict tools) are sampled by `--sampler own` only"
            )
        if len(request.prompt_ids) >= self.context_length:
            raise ContextLengthError(len(request.prompt_ids), self.context_length)
        inbox = self._reached().open(joined=request.delivery == "joined")
        answer = asyncio.run_coroutine_threadsafe(self._answers.answer(request, inbox.post), self._loop)
        answer.add_done_callback(
            lambda done: None if _is_complete(done) else inbox.post(TokenDelta(finish_reason="cancelled"))
        )
        finished = False
        try:
            while not finished:
                delta = await inbox.get()
                finished = delta.finish_reason is not None
                if delta.finish_reason == "cancelled" and not answer.cancelled():
                    if delta.token_ids:
                        yield TokenDelta(delta.token_ids, delta.logprobs, delta.top_logprobs, version=delta.version)
                    answer.result()
                yield delta
        finally:
            inbox.close()
            answer.cancel()

    async def wait_until_all_are_well(self, seconds: float) -> None:
        """Return once every server is well, those that were taken out among them.

        Raises:
            TimeoutError: one is not, after so many seconds.
        """
        end = time.monotonic() + seconds
        while not all(replica.well for replica in self.replicas):
            if time.monotonic() > end:
                raise TimeoutError("a server is not well")
            await asyncio.sleep(0.05)

    async def publish(self, adapter: str, version: int, save: Callable[[Path], None]) -> None:
        """See `Sampler.publish`.

        Raises:
            UserError: a server refuses the weights, or does not compute with them as the learner does.
        """
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._publish(adapter, version, save), self._loop))

    async def _publish(self, adapter: str, version: int, save: Callable[[Path], None]) -> None:
        if self._members.failure is not None:
            raise self._members.failure
        publication = self._publications.new(adapter, version)
        await asyncio.to_thread(save, publication.folder)
        try:
            await self._members.wait_for_one()
            async with self._members.lock:
                if self._rank is None:
                    await self._replace(publication)
                else:
                    bring = [self._members.bring(one, [publication], probed=True) for one in self._members.well]
                    await asyncio.gather(*bring)
                self._publications.promote(publication)
        except OverloadedError as error:
            raise UserError(f"version {version} of {adapter} reaches no server: {error}", setting="sampler") from error
        self._tidy()
        for replica in self._members.well:
            logger.info("%s samples version %d of %s", replica.url, version, adapter)

    async def _replace(self, publication: Publication) -> None:
        """Replace all weights, between the requests that are under way and those that wait."""
        publication.name = ""
        self._answers.open.clear()
        try:
            await self._answers.idle.wait()
            for replica in self._members.well:
                await self._members.bring(replica, [publication], probed=True)
        finally:
            self._answers.open.set()

    def _tidy(self) -> None:
        task = self._loop.create_task(self._forget_unused())
        self._tidying.add(task)
        task.add_done_callback(self._tidying.discard)

    async def _forget_unused(self) -> None:
        for publication in self._publications.take_unused():
            if publication.name:
                await self._members.forget(publication)
            await asyncio.to_thread(shutil.rmtree, publication.folder, ignore_errors=True)

    def close(self) -> None:
        """See `Sampler.close`."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(concurrent.futures.TimeoutError):
            self._call(self._close(), _GOODBYE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._locked.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self._end is not None:
            self._end()

    async def _close(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        for publication in self._publications.in_use():
            if publication.name:
                await self._members.forget(publication)
        for replica in self.replicas:
            await replica.wire.client.aclose()

    def _call(self, job: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(job, self._loop).result(seconds)

    def _reached(self) -> HandOver:
        loop = asyncio.get_running_loop()
        if self._hand_over is None or self._hand_over.loop is not loop:
            self._hand_over = HandOver(loop)
        return self._hand_over


def _is_complete(answer: concurrent.futures.Future[None]) -> bool:
    return not answer.cancelled() and answer.exception() is None
