"""A pool of vLLM or SGLang servers as one sampler, and `make_sampler`, which chooses between it and the engine.

    publish   saves new weights, loads them on every server and checks them; requests that begin later use them
    complete  samples on one server; if the server is lost, another one continues from the tokens so far
    watch     takes out servers that fail, restarts those that this run has started, and brings them up to date

The pool has an event loop on a thread of its own, so that neither the gateway nor the training loop waits for it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import logging
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..errors import UserError
from ..http import BadRequestError, OverloadedError
from ..plugins import load_plugin, or_plugin
from ..policy import Policy
from ..processes import check_cancelled
from ..tokens import FinishReason, TokenDelta, TokenRequest
from .base import ContextLengthError, Sampler, SamplerLoad, SamplerSettings
from .clients import (
    Generation,
    ReplicaLostError,
    RequestRefusedError,
    ServerInfo,
    SglangClient,
    VllmClient,
    refusal,
)
from .policy_sampler import PolicySampler, TokenStreams
from .replica import Probe, Publication, Replica
from .vllm_process import end_servers, start_servers

logger = logging.getLogger(__name__)

_TRIES: Final = 5
"""Servers that one request may be lost with: the request itself may crash them."""
_STREAM_INTERVALS: Final = {"whole": 32, "joined": 4}
"""Tokens that a server sends together, by the delivery of the request; 1 otherwise."""
_MAX_AFFINITIES: Final = 8192
"""Number of rollouts whose server is remembered."""
_WATCH_SECONDS: Final = 2.0
"""Seconds between two health checks of a server."""
_MISSED_CHECKS: Final = 2
"""Failed health checks in a row after which a server is taken out."""
_CONNECT_SECONDS: Final = 1.0
"""Seconds between two attempts to reach a server that does not answer yet."""
_WAIT_SECONDS: Final = 0.1
"""Seconds between two checks of a request that waits for a server."""
_NOTE_SECONDS: Final = 15.0
"""Seconds between two notes about a server that does not answer yet."""
_CLOSE_SECONDS: Final = 10.0


class SamplerPool:
    """Samples on servers with LoRA adapters.

    Args:
        replicas: the servers.
        settings: time limits, and the bound of the comparison with the learner.
        policy: the learner's weights.
        base_name: name of the model without an adapter in requests.
        prompts: token ids of the first comparison of each server.
        folder: folder in which new weights are saved for the servers.
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
    ) -> None:
        self.model_names = (base_name, *policy.model.versions)
        self.context_length = policy.model.context_length
        self.replicas = tuple(replicas)
        self.sampled_tokens = 0
        self._settings = settings
        self._silence = settings.sampler_silence
        self._rank = policy.model.rank or 0
        self._probe = Probe(policy, prompts, settings.parity_bound)
        self._run = secrets.token_hex(3)
        """Id of this pool in the names of its adapters: other runs may use the same servers and folder."""
        self._folder = folder / self._run
        self._folder.mkdir(parents=True)
        self._published = 0
        self._bare = Publication()
        self._current: dict[str, Publication] = {}
        """Weights that requests begin with, by adapter."""
        self._older: set[Publication] = set()
        """Earlier weights, which requests in flight may still use."""
        self._loading = asyncio.Lock()
        """Held while new weights are loaded, so that a restored server gets the newest ones."""
        self._in_flight = 0
        self._replica_of: OrderedDict[str, Replica] = OrderedDict()
        """Server of the earlier requests of a rollout: it has their keys and values in its cache."""
        self._failure: UserError | None = None
        """Error of a server that came back; the next `publish` raises it."""
        self._streams: TokenStreams | None = None
        self._watches: list[asyncio.Task[None]] = []
        self._unloading: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sampler-pool", daemon=True)
        self._thread.start()

    def connect(self, least_context: int, note: Callable[[str], None]) -> None:
        """Reach every server and compare it with the learner. Blocks.

        Args:
            least_context: tokens that prompt and answer together must have room for.
            note: called with a line about each server that does not answer yet.

        Raises:
            UserError: a server does not answer, or cannot be sampled from; the message says what to change.
        """
        asyncio.run_coroutine_threadsafe(self._connect(least_context, note), self._loop).result()

    async def _connect(self, least_context: int, note: Callable[[str], None]) -> None:
        end = time.monotonic() + self._settings.sampler_wait
        for replica in self.replicas:
            try:
                replica.info = await _reach(replica, end, note)
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

    def load(self) -> SamplerLoad:
        """See `Sampler.load`."""
        running = sum(replica.in_flight for replica in self.replicas)
        return SamplerLoad(sequences={"running": running, "waiting": max(0, self._in_flight - running)})

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
                    answer.result()  # raises
                yield delta
        finally:
            stream.close()
            answer.cancel()

    async def _answer(self, request: TokenRequest, post: Callable[[TokenDelta], None]) -> None:
        """Sample one continuation; `post` is called with its deltas, the last one with the finish reason."""
        publication = self._bare if request.adapter is None else self._current.get(request.adapter)
        if publication is None:
            raise OverloadedError(f"No weights of {request.adapter!r} have been published yet. Try again shortly.")
        self._probe.remember(request.prompt_ids)
        answer = _Answer(request, publication, post)
        publication.requests += 1
        self._in_flight += 1
        try:
            await self._sample(answer)
        finally:
            self.sampled_tokens += len(answer.token_ids)
            self._in_flight -= 1
            publication.requests -= 1
            if not publication.requests and publication in self._older:
                self._unload_unused()

    async def _sample(self, answer: _Answer) -> None:
        sampling = answer.request.sampling
        penalised = sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1
        for _ in range(_TRIES):
            reason = answer.finish_reason
            if reason is not None:
                answer.take(TokenDelta(finish_reason=reason))
                return
            replica = await self._choose(answer.request.affinity, answer.publication)
            try:
                await replica.sample(answer.remainder(replica.info.model), answer.take, self._silence)
                return
            except ReplicaLostError as error:
                replica.lose(error)
            except RequestRefusedError as error:
                raise BadRequestError(f"the server that samples refuses the request: {error.text}") from error
            if answer.token_ids and penalised:  # another server would not know which tokens to penalise
                break
        raise OverloadedError("The servers that sample were lost one after the other. Try again shortly.")

    async def _choose(self, affinity: str, publication: Publication) -> Replica:
        """Return a server that has the weights: that of the rollout's earlier requests, else the least busy one."""
        ready: list[Replica] = []
        while not ready:
            healthy = await self._wait_for_healthy()
            ready = [replica for replica in healthy if publication.name is None or publication.name in replica.loaded]
            if not ready:
                await self._load(min(healthy, key=lambda replica: replica.in_flight), [publication])
        chosen = self._replica_of.get(affinity) if affinity else None
        if chosen is None or chosen not in ready:
            chosen = min(ready, key=lambda replica: replica.in_flight)
        if affinity:
            self._replica_of[affinity] = chosen
            self._replica_of.move_to_end(affinity)
            if len(self._replica_of) > _MAX_AFFINITIES:
                self._replica_of.popitem(last=False)
        return chosen

    async def _wait_for_healthy(self) -> list[Replica]:
        """Return the healthy servers; raise `OverloadedError` if there is none for `sampler_timeout` seconds."""
        end = self._loop.time() + self._settings.sampler_timeout
        while not (healthy := [replica for replica in self.replicas if replica.well]):
            if self._loop.time() >= end:
                raise OverloadedError("No server that samples is well. Try again shortly.")
            await asyncio.sleep(_WAIT_SECONDS)
        return healthy

    async def publish(self, adapter: str, version: int, save: Callable[[Path], None]) -> None:
        """See `Sampler.publish`.

        Raises:
            UserError: a server refuses the weights, or its log-probabilities differ from the learner's.
        """
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._publish(adapter, version, save), self._loop))

    async def _publish(self, adapter: str, version: int, save: Callable[[Path], None]) -> None:
        if self._failure is not None:
            raise self._failure
        self._published += 1
        name = f"{adapter}@v{version}.{self._run}{self._published}"
        publication = Publication(adapter, version, name, self._folder / name)
        await asyncio.to_thread(save, publication.folder)
        try:
            healthy = await self._wait_for_healthy()
        except OverloadedError as error:
            raise UserError(f"version {version} of {adapter} reaches no server: {error}", setting="sampler") from error
        async with self._loading:
            await asyncio.gather(*(self._load(replica, [publication], compare=True) for replica in healthy))
            previous = self._current.get(adapter)
            self._current[adapter] = publication
            if previous is not None:
                self._older.add(previous)
        self._unload_unused()
        for replica in healthy:
            if replica.well:
                logger.info("%s samples version %d of %s", replica.url, version, adapter)

    async def _load(self, replica: Replica, publications: Sequence[Publication], *, compare: bool = False) -> bool:
        """Load weights on a server; return False, with the server taken out, if it is lost meanwhile.

        Args:
            compare: compare the server with the learner, which must have these weights at the moment.
        """
        try:
            for publication in publications:
                if publication.name is not None and publication.name not in replica.loaded:
                    await replica.client.load_adapter(publication.name, publication.folder)
                    replica.loaded.add(publication.name)
                if compare:
                    await self._probe.check(replica, publication, self._silence)
        except ReplicaLostError as error:
            replica.lose(error)
            return False
        except RequestRefusedError as error:
            raise refusal(replica.url, error, self._rank) from error
        return True

    def _unload_unused(self) -> None:
        """Unload older weights that no request uses, in the background."""
        unused = [publication for publication in self._older if not publication.requests]
        self._older.difference_update(unused)
        task = self._loop.create_task(self._unload(unused))
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _unload(self, publications: Sequence[Publication]) -> None:
        for publication in publications:
            for replica in self.replicas:
                if publication.name is None or publication.name not in replica.loaded:
                    continue
                replica.loaded.discard(publication.name)
                try:
                    await replica.client.unload_adapter(publication.name)
                except (ReplicaLostError, RequestRefusedError) as error:
                    logger.info("%s has not unloaded %s: %s", replica.url, publication.name, error)
            await asyncio.to_thread(shutil.rmtree, publication.folder, ignore_errors=True)

    async def _watch(self, replica: Replica) -> None:
        """Check a server until cancelled: take it out when it fails, bring it back when it is healthy again."""
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
                    try:
                        await asyncio.to_thread(replica.server.restart)
                    except UserError as failure:
                        self._failure = self._failure or failure
                continue
            missed = 0
            if not replica.well:
                await self._bring_back(replica)

    async def _bring_back(self, replica: Replica) -> None:
        """Load the current weights on a server before it gets requests again."""
        async with self._loading:
            try:
                replica.info = await replica.client.info()
                in_use = {publication.name for publication in (*self._current.values(), *self._older)}
                replica.loaded = {name for name in replica.info.adapters if name in in_use}
                for name in replica.info.adapters - replica.loaded:
                    if name.rpartition(".")[2].startswith(self._run):  # an older adapter of this run
                        await replica.client.unload_adapter(name)
                replica.well = await self._load(replica, list(self._current.values()), compare=True)
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
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_CLOSE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        end_servers([replica.server for replica in self.replicas if replica.server is not None])

    async def _close(self) -> None:
        for watch in self._watches:
            watch.cancel()
        await asyncio.gather(*self._watches, return_exceptions=True)
        await self._unload([*self._current.values(), *self._older])
        for replica in self.replicas:
            await replica.client.http.aclose()


class _Answer:
    """One answer as it grows, whichever servers sample it."""

    def __init__(self, request: TokenRequest, publication: Publication, post: Callable[[TokenDelta], None]) -> None:
        self.request = request
        self.publication = publication
        self.token_ids: list[int] = []
        self._post = post
        self._held: list[TokenDelta] = []

    @property
    def finish_reason(self) -> FinishReason | None:
        """Finish reason that follows from the tokens so far, if their server was lost before it reported one."""
        sampling = self.request.sampling
        if self.token_ids and self.token_ids[-1] in sampling.stop_token_ids:
            return "stop"
        return "length" if len(self.token_ids) >= sampling.max_tokens else None

    def remainder(self, model: str) -> Generation:
        """Return what is left to sample, for a server whose base model has this name."""
        request, count, sampling = self.request, len(self.token_ids), self.request.sampling
        if count:
            seed = sampling.seed
            if seed is not None:  # another one than that of the start
                seed = int.from_bytes(hashlib.blake2b(f"{seed}/{count}".encode(), digest_size=8).digest(), "big") >> 1
            min_tokens = max(0, sampling.min_tokens - count)
            sampling = replace(sampling, max_tokens=sampling.max_tokens - count, min_tokens=min_tokens, seed=seed)
        return Generation(
            model=model,
            adapter=self.publication.name,
            prompt_ids=(*request.prompt_ids, *self.token_ids),
            sampling=sampling,
            salt=self.publication.salt,
            stream_interval=_STREAM_INTERVALS.get(request.delivery, 1),
        )

    def take(self, delta: TokenDelta) -> None:
        """Post the next tokens; an answer that is delivered as a whole is posted at its end."""
        self.token_ids += delta.token_ids
        self._held.append(replace(delta, version=self.publication.version))
        if self.request.delivery == "whole" and delta.finish_reason is None:
            return
        held, self._held = self._held, []
        for each in held:
            self._post(each)


async def _reach(replica: Replica, end: float, note: Callable[[str], None]) -> ServerInfo:
    """Return what a server reports about itself; wait for it until `end` (monotonic clock)."""
    noted = -_NOTE_SECONDS
    while True:
        check_cancelled()
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


KEY_VARIABLE: Final = "MINI_AGENTIC_RL_SAMPLER_KEY"
"""Environment variable with the API key of the servers."""


def make_sampler(
    settings: SamplerSettings,
    policy: Policy,
    *,
    base_name: str,
    prompts: Sequence[Sequence[int]],
    model_folder: str = "",
    least_context: int = 1,
    note: Callable[[str], None] = lambda text: None,
) -> Sampler:
    """Return the engine of the policy as a sampler, or a pool of servers. Blocks until the servers are ready.

    Args:
        base_name: name of the model without an adapter in requests.
        prompts: token ids of the first comparison of servers with the learner.
        model_folder: folder or id of the base model, for servers that are started.
        least_context: tokens that prompt and answer together must have room for.
        note: called with a line of progress at each slow step.

    Raises:
        UserError: a server cannot be started, reached or sampled from; the message says what to change. Or there is no
            plugin of this name, or it cannot be loaded.
    """
    if settings.sampler not in ("own", "vllm", "sglang"):
        make = load_plugin("samplers", settings.sampler, setting="sampler")
        if make is None:
            raise UserError(f"there is no sampler {settings.sampler!r}{or_plugin('samplers')}", setting="sampler")
        plugged: Sampler = make(settings, policy, base_name=base_name, prompts=prompts)
        return plugged
    model = policy.model
    if settings.sampler == "own":
        return PolicySampler(
            policy.engine, base_name=base_name, adapters=list(model.versions), context_length=model.context_length
        )
    if model.rank is None:
        raise UserError(
            "vLLM and SGLang servers are given adapters, and all weights of the model are trained here: use "
            "`sampler=own`, or train an adapter",
            setting="sampler",
        )
    folder = (settings.sampler_folder or Path(tempfile.mkdtemp(prefix="mini-agentic-rl-sampler-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    key = os.environ.get(KEY_VARIABLE)
    if settings.sampler_url:
        urls = [url.rstrip("/").removesuffix("/v1") for url in settings.sampler_url]
        client = SglangClient if settings.sampler == "sglang" else VllmClient
        replicas = [Replica(url, client(url, key)) for url in urls]
    else:
        servers = start_servers(settings, model, model_folder, folder, note)
        replicas = [Replica(server.url, VllmClient(server.url, key), server) for server in servers]
    pool = SamplerPool(replicas, settings, policy, base_name=base_name, prompts=prompts, folder=folder)
    try:
        pool.connect(least_context, note)
    except BaseException:
        pool.close()
        raise
    return pool
