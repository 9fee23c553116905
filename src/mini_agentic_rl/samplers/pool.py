"""A pool of token servers as one sampler: their weights, their failures, and which server samples a request.

    publish   writes new weights, loads and probes them on every server; requests that begin later use them
    complete  samples at a server; if that is lost, another one goes on from the tokens so far
    watch     takes out servers that do not answer, restarts those that the run has started, and brings them up to date

The pool has an event loop on a thread of its own, so that neither the gateway nor the training loop waits for it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import logging
import re
import secrets
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from ..errors import UserError
from ..files import LOCK_FILE, is_written, one_writer
from ..http import BadRequestError, OverloadedError
from ..policy import Policy
from ..tokens import FinishReason, SamplingParams, TokenDelta, TokenRequest
from .base import ContextLengthError, SamplerLoad, SamplerSettings
from .clients import Generation, ReplicaLostError, RequestRefusedError, ServerInfo, refusal
from .policy_sampler import TokenStreams
from .replica import Parity, Probe, Publication, Replica
from .vllm_process import Server

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TRIES: Final = 5
"""Servers that a request may be lost with: it may be what ends them."""
_WHOLE_INTERVAL: Final = 32
"""Tokens that a server sends together of an answer that is delivered as a whole."""
_JOINED_INTERVAL: Final = 4
_MOST_ROLLOUTS: Final = 8192
"""Rollouts whose server is remembered."""
_WATCH_SECONDS: Final = 2.0
"""Seconds between two health checks of a server."""
_MISSED_CHECKS: Final = 2
"""Failed health checks after which a server is taken out."""
_CONNECT_SECONDS: Final = 1.0
"""Seconds between two attempts to reach a server that does not answer yet."""
_WAIT_SECONDS: Final = 0.1
"""Seconds between two checks of a request that waits for a server."""
_NOTE_SECONDS: Final = 15.0
"""Seconds between two notes of a server that does not answer yet."""
_CLOSE_SECONDS: Final = 10.0
_RUN: Final = re.compile("[0-9a-f]{6}")
"""Identifier of a run in the names of its weights, and the name of its folder."""


class SamplerPool:
    """Samples from servers.

    Args:
        replicas: the servers.
        settings: time limits, and the bound of the comparison with the learner.
        policy: the learner's weights.
        base_name: name under which requests ask for the model without an adapter.
        prompts: token ids that servers are compared with at first.
        folder: folder for the weights that the servers load.
        end: ends the servers, where they were started for this pool.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        settings: SamplerSettings,
        policy: Policy,
        *,
        base_name: str,
        prompts: Sequence[Sequence[int]],
        folder: Path,
        end: Callable[[], None] | None = None,
    ) -> None:
        self.model_names = (base_name, *policy.model.versions)
        self.context_length = policy.model.context_length
        self.replicas = tuple(replicas)
        self.sampled_tokens = 0
        self.moved = 0
        """Answers that went on at another server, because theirs was lost."""
        self._settings = settings
        self._silence = settings.sampler_silence
        self._rank = policy.model.rank
        """Rank of the adapters; None where all weights are trained."""
        self._probe = Probe(policy, prompts, settings.parity_bound)
        self._end = end
        self._run = secrets.token_hex(3)
        self._killed_runs = _killed_runs(folder)
        self._folder = folder / self._run
        self._folder.mkdir(parents=True)  # not a private folder, as a lock would make: servers of other users read it
        self._locked = contextlib.ExitStack()
        self._locked.enter_context(one_writer(self._folder, setting="sampler_folder"))

        self._published = 0
        self._bare = Publication.of_bare_model()
        self._current: dict[str, Publication] = {}
        """Weights that requests begin with, by adapter."""
        self._older: set[Publication] = set()
        """Earlier weights, some of which requests under way still use."""
        self._loading = asyncio.Lock()
        """Held while the weights of servers change, so that none is brought up to a version that is past."""
        self._accepting = asyncio.Event()
        """Cleared while no request may begin, because all weights of the servers are replaced."""
        self._accepting.set()
        self._answers: set[asyncio.Task[Any]] = set()
        """Requests under way."""
        self._waiting = 0
        self._replica_of: OrderedDict[str, Replica] = OrderedDict()
        self._failure: UserError | None = None
        """Refusal of a server that came back; it ends the run."""
        self._streams: TokenStreams | None = None
        self._watches: list[asyncio.Task[None]] = []
        self._unloading: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sampler-pool", daemon=True)
        self._thread.start()

    def connect(self, least_context: int, note: Callable[[str], None]) -> None:
        """Reach each server and check that it can be sampled from. Blocks.

        Args:
            least_context: tokens that prompt and answer may have together, for which there has to be room.
            note: called with a line about each server that is waited for.

        Raises:
            UserError: a server does not answer, or cannot be sampled from; the message says what to change.
        """
        self._call(self._connect(least_context, time.monotonic() + self._settings.sampler_wait, note))

    async def _connect(self, least_context: int, end: float, note: Callable[[str], None]) -> None:
        for replica in self.replicas:
            try:
                replica.info = await _reached(replica, end, note)
                await self._unload(replica, replica.info.adapters)
                if self._rank is not None:  # a model that is trained in full is compared when it is published
                    await self._probe.check(replica, self._bare, self._silence)
            except ReplicaLostError as error:
                raise UserError(
                    f"no sampler answers at {replica.url}: {error}; is the address right (`sampler_url`), and does it "
                    "need longer to start?",
                    setting="sampler_wait",
                ) from error
            except RequestRefusedError as error:
                raise refusal(replica.url, error, self._rank) from error
            room = replica.info.context_length or self.context_length
            if room <= least_context:
                raise UserError(
                    f"the server {replica.url} has room for {room} tokens, prompt and answer together, but answers "
                    f"may have {least_context} (`max_new_tokens`): start it with a larger --max-model-len",
                    setting="sampler_url",
                )
            self.context_length = min(self.context_length, room)
            replica.well = True
        self._watches = [asyncio.create_task(self._watch(replica)) for replica in self.replicas]
        for folder in self._killed_runs.values():
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def load(self) -> SamplerLoad:
        """See `Sampler.load`."""
        running = sum(replica.under_way for replica in self.replicas)
        return SamplerLoad(sequences={"running": running, "waiting": self._waiting})

    @property
    def parities(self) -> dict[str, Parity]:
        """The last comparison of each server with the learner, by its address."""
        return {replica.url: replica.parity for replica in self.replicas if replica.parity is not None}

    @property
    def parity_bound(self) -> float:
        """Mean difference that is taken for rounding (nats)."""
        return self._probe.bound

    async def complete(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        """See `Sampler.complete`."""
        if request.constraint is not None:
            raise BadRequestError(
                "answers of a given form (a JSON schema, strict tools) are sampled by `--sampler own` only"
            )
        if len(request.prompt_ids) >= self.context_length:
            raise ContextLengthError(len(request.prompt_ids), self.context_length)
        self._streams = TokenStreams.of_running_loop(self._streams)
        stream = self._streams.open(joined=request.delivery == "joined")
        answer = asyncio.run_coroutine_threadsafe(self._answer(request, stream.post), self._loop)

        def post_end(done: concurrent.futures.Future[None]) -> None:
            if done.cancelled() or done.exception() is not None:
                stream.post(TokenDelta(finish_reason="cancelled"))

        answer.add_done_callback(post_end)
        finished = False
        try:
            while not finished:
                delta = await stream.get()
                finished = delta.finish_reason is not None
                if delta.finish_reason == "cancelled" and not answer.cancelled():
                    if delta.token_ids:
                        yield TokenDelta(delta.token_ids, delta.logprobs, delta.top_logprobs, version=delta.version)
                    answer.result()
                yield delta
        finally:
            stream.close()
            answer.cancel()

    async def _answer(self, request: TokenRequest, post: Callable[[TokenDelta], None]) -> None:
        """Sample one continuation; `post` is called with its deltas, the finish reason last."""
        self._waiting += 1
        try:
            await self._accepting.wait()
        finally:
            self._waiting -= 1
        publication = self._bare if request.adapter is None else self._current.get(request.adapter)
        if publication is None:
            raise OverloadedError(f"No weights of {request.adapter!r} have been published yet. Try again shortly.")
        self._probe.remember(request.prompt_ids)
        answer = _Answer(request, publication, post)
        publication.users += 1
        task = asyncio.current_task()
        assert task is not None
        self._answers.add(task)
        try:
            await self._sample(answer)
        finally:
            self.sampled_tokens += len(answer.token_ids)
            publication.users -= 1
            self._answers.discard(task)
            if not publication.users and publication in self._older:
                self._unload_unused()

    async def _sample(self, answer: _Answer) -> None:
        sampling = answer.request.sampling
        penalised = sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1
        for _ in range(_TRIES):
            reason = answer.reason
            if reason is not None:
                answer.take(TokenDelta(finish_reason=reason))
                return
            replica = await self._choose(answer.request.affinity, answer.publication)
            try:
                await replica.sample(answer.rest(replica.info.model), answer.take, self._silence)
                return
            except ReplicaLostError as error:
                replica.lose(error)
                self.moved += 1
            except RequestRefusedError as error:
                raise BadRequestError(f"the server that samples refuses the request: {error.text}") from error
            if answer.token_ids and penalised:  # another server would not know which tokens to penalise
                break
        raise OverloadedError("The servers that sample were lost one after the other. Try again shortly.")

    @property
    def _well(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.well]

    async def _wait_for_one(self) -> None:
        """Return once a server is well; raise `OverloadedError` where none is for `sampler_timeout`."""
        end = self._loop.time() + self._settings.sampler_timeout
        while not self._well:
            if self._loop.time() >= end:
                raise OverloadedError("No server that samples is well. Try again shortly.")
            await asyncio.sleep(_WAIT_SECONDS)

    async def _choose(self, affinity: str, publication: Publication) -> Replica:
        """Return a server that has the weights: that of the rollout's earlier requests, else the least busy one."""
        ready: list[Replica] = []
        while not ready:
            await self._wait_for_one()
            ready = [replica for replica in self._well if not publication.name or publication.name in replica.loaded]
            if not ready:
                await self._bring(min(self._well, key=lambda replica: replica.under_way), [publication])
        chosen = self._replica_of.get(affinity) if affinity else None
        if chosen is None or chosen not in ready:
            chosen = min(ready, key=lambda replica: replica.under_way)
        if affinity:
            self._replica_of[affinity] = chosen
            self._replica_of.move_to_end(affinity)
            if len(self._replica_of) > _MOST_ROLLOUTS:
                self._replica_of.popitem(last=False)
        return chosen

    async def publish(self, adapter: str, version: int, save: Callable[[Path], None]) -> None:
        """See `Sampler.publish`.

        Raises:
            UserError: a server refuses the weights, or does not compute with them as the learner does.
        """
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._publish(adapter, version, save), self._loop))

    async def _publish(self, adapter: str, version: int, save: Callable[[Path], None]) -> None:
        if self._failure is not None:
            raise self._failure
        self._published += 1
        number = f"v{version}.{self._run}{self._published}"
        name = f"{adapter}@{number}"
        publication = Publication(adapter, version, name, self._folder / name, f"{adapter}.{number}")
        await asyncio.to_thread(save, publication.folder)
        try:
            await self._wait_for_one()
            async with self._loading:
                if self._rank is None:
                    await self._replace_weights(publication)
                else:
                    await asyncio.gather(*(self._bring(each, [publication], probed=True) for each in self._well))
                previous = self._current.get(adapter)
                self._current[adapter] = publication
                if previous is not None:
                    self._older.add(previous)
        except OverloadedError as error:
            raise UserError(f"version {version} of {adapter} reaches no server: {error}", setting="sampler") from error
        self._unload_unused()
        for replica in self._well:
            logger.info("%s samples version %d of %s", replica.url, version, adapter)

    async def _replace_weights(self, publication: Publication) -> None:
        """Replace all weights of the model once no request is under way; new ones wait."""
        publication.name = ""
        self._accepting.clear()
        try:
            if self._answers:
                await asyncio.wait(self._answers)
            for replica in self._well:
                await self._bring(replica, [publication], probed=True)
        finally:
            self._accepting.set()

    async def _bring(self, replica: Replica, publications: Sequence[Publication], *, probed: bool = False) -> bool:
        """Load weights onto a server; return False, with the server taken out, where it is lost meanwhile.

        Args:
            probed: True compares the server with the learner, which has these weights at the moment.
        """
        try:
            for publication in publications:
                if not publication.name:
                    await replica.client.load_weights(publication.folder)
                elif publication.name not in replica.loaded:
                    await replica.client.load_adapter(publication.name, publication.folder)
                    replica.loaded.add(publication.name)
                if probed:
                    await self._probe.check(replica, publication, self._silence)
        except ReplicaLostError as error:
            replica.lose(error)
            return False
        except RequestRefusedError as error:
            raise refusal(replica.url, error, self._rank) from error
        return True

    async def _unload(self, replica: Replica, names: Iterable[str]) -> None:
        """Unload those of the names from a server that are of this run, or of a run that was killed."""
        for name in names:
            _, dot, number = name.rpartition(".")
            if dot and number[: len(self._run)] in {self._run, *self._killed_runs}:
                await replica.client.unload_adapter(name)

    def _unload_unused(self) -> None:
        """Unload older weights that no request uses, in the background."""
        task = self._loop.create_task(self._unload_older())
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _unload_older(self) -> None:
        unused = [publication for publication in self._older if not publication.users]
        self._older.difference_update(unused)
        for publication in unused:
            await self._unload_everywhere(publication)
            await asyncio.to_thread(shutil.rmtree, publication.folder, ignore_errors=True)

    async def _unload_everywhere(self, publication: Publication) -> None:
        for replica in self.replicas:
            if publication.name not in replica.loaded:
                continue
            replica.loaded.discard(publication.name)
            try:
                await replica.client.unload_adapter(publication.name)
            except (ReplicaLostError, RequestRefusedError) as error:
                logger.info("%s has not unloaded %s: %s", replica.url, publication.name, error)

    async def _watch(self, replica: Replica) -> None:
        """Check a server until cancelled: take it out when it fails, bring it back when it is well again."""
        missed = 0
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                await replica.client.health()
            except (ReplicaLostError, RequestRefusedError) as error:
                missed += 1
                if replica.well and missed >= _MISSED_CHECKS:
                    replica.lose(error)
                if not replica.well and replica.server is not None:
                    await self._restart(replica, replica.server)
                continue
            missed = 0
            if not replica.well:
                await self._bring_back(replica)

    async def _restart(self, replica: Replica, server: Server) -> None:
        try:
            await asyncio.to_thread(server.restart)
        except UserError as error:
            self._failure = self._failure or error
            return
        if server.url != replica.url:
            logger.info("the sampler %s is now at %s", replica.url, server.url)
            replica.url = server.url
            replica.client.http.base_url = server.url

    async def _bring_back(self, replica: Replica) -> None:
        """Bring a server up to the current versions before it gets requests again."""
        async with self._loading:
            try:
                replica.info = await replica.client.info()
                present = replica.info.adapters
                in_use = [*self._current.values(), *self._older]
                replica.loaded = {publication.name for publication in in_use if publication.name in present}
                await self._unload(replica, present - replica.loaded)
                replica.well = await self._bring(replica, list(self._current.values()), probed=True)
            except (ReplicaLostError, RequestRefusedError) as error:
                logger.info("the sampler %s is not back yet: %s", replica.url, error)
            except UserError as error:
                self._failure = self._failure or error
                logger.error("the sampler %s stays out: %s", replica.url, error)
        if replica.well:
            versions = ", ".join(str(publication.version) for publication in self._current.values())
            logger.warning("the sampler %s is back, at version %s", replica.url, versions or "0")

    def close(self) -> None:
        """See `Sampler.close`."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(concurrent.futures.TimeoutError):
            self._call(self._close(), _CLOSE_SECONDS)
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
        for publication in (*self._current.values(), *self._older):
            await self._unload_everywhere(publication)
        for replica in self.replicas:
            await replica.client.http.aclose()

    def _call(self, job: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        return asyncio.run_coroutine_threadsafe(job, self._loop).result(seconds)


class _Answer:
    """One answer as it grows, whichever servers sample it."""

    def __init__(self, request: TokenRequest, publication: Publication, post: Callable[[TokenDelta], None]) -> None:
        self.request = request
        self.publication = publication
        self.token_ids: list[int] = []
        self._post = post
        self._held: list[TokenDelta] = []

    @property
    def reason(self) -> FinishReason | None:
        """Finish reason that the tokens so far imply, although the server that sampled them reported none."""
        sampling = self.request.sampling
        if self.token_ids and self.token_ids[-1] in sampling.stop_token_ids:
            return "stop"
        return "length" if len(self.token_ids) >= sampling.max_tokens else None

    def rest(self, model: str) -> Generation:
        """Return what is still to be sampled by a server whose base model has this name."""
        request = self.request
        return Generation(
            model=model,
            adapter=self.publication.name or None,
            prompt_ids=(*request.prompt_ids, *self.token_ids),
            sampling=_rest(request.sampling, len(self.token_ids)),
            salt=self.publication.salt,
            stream_interval={"whole": _WHOLE_INTERVAL, "joined": _JOINED_INTERVAL}.get(request.delivery, 1),
        )

    def take(self, delta: TokenDelta) -> None:
        """Post the next tokens; those of an answer that is delivered as a whole wait for its last ones."""
        self.token_ids += delta.token_ids
        self._held.append(replace(delta, version=self.publication.version))
        if self.request.delivery == "whole" and delta.finish_reason is None:
            return
        held, self._held = self._held, []
        for each in held:
            self._post(each)


def _rest(sampling: SamplingParams, count: int) -> SamplingParams:
    """Return the settings of a continuation that goes on after so many tokens, with draws of its own."""
    if not count:
        return sampling
    seed = sampling.seed
    if seed is not None:
        seed = int.from_bytes(hashlib.blake2b(f"{seed}/{count}".encode(), digest_size=8).digest(), "big") >> 1
    least = max(0, sampling.min_tokens - count)
    return replace(sampling, max_tokens=sampling.max_tokens - count, min_tokens=least, seed=seed)


def _killed_runs(folder: Path) -> dict[str, Path]:
    """Return runs that were killed, and the folders of weights that they have left in `folder`."""
    return {
        entry.name: entry
        for entry in (folder.iterdir() if folder.is_dir() else ())
        if _RUN.fullmatch(entry.name) and (entry / LOCK_FILE).exists() and not is_written(entry)
    }


async def _reached(replica: Replica, end: float, note: Callable[[str], None]) -> ServerInfo:
    """Return what a server reports about itself, once it answers, which may take until `end` of the monotonic clock."""
    noted = -_NOTE_SECONDS
    while True:
        try:
            return await replica.client.info()
        except ReplicaLostError as error:
            now = time.monotonic()
            if now >= end:
                raise
            if now - noted >= _NOTE_SECONDS:
                noted = now
                note(f"waiting for the sampler {replica.url}, {end - now:.0f} s at most (`sampler_wait`): {error}")
        await asyncio.sleep(min(_CONNECT_SECONDS, max(0.0, end - time.monotonic())))
