"""A server on a real policy that is small enough for a test, and whether it has come to rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.gateway.settings import GatewayLimits
from mini_agentic_rl.policy import DEFAULT_ADAPTER, EngineSettings, LoraSettings, Policy
from mini_agentic_rl.samplers import PolicySampler
from mini_agentic_rl.tokens import TokenDelta, TokenRequest
from tiny import tiny_model, tiny_tokenizer


class TinyServer:
    """The server, its policy, and the event loop that it runs on."""

    def __init__(self, policy: Policy, sampler: KnowingSampler, server: MiniLLMServer) -> None:
        self.policy = policy
        self.sampler = sampler
        self.server = server

    def busy(self) -> str:
        """What is still under way; empty when nothing is."""
        cache, counters = self.policy.engine.cache, self.server.service.counters
        found = {
            "sequences": sum(self.policy.engine.sequence_counts),
            "blocks": cache.total - cache.available,
            "requests": self.server.admission.active,
            "calls": counters.active,
        }
        return ", ".join(f"{count} {name}" for name, count in found.items() if count)

    def wait_for_rest(self, seconds: float = 30.0) -> None:
        """Return once nothing is under way.

        Raises:
            AssertionError: something still is, after so many seconds.
        """
        end = time.monotonic() + seconds
        while self.busy():
            assert time.monotonic() < end, f"still there: {self.busy()}"
            time.sleep(0.02)

    def tasks(self) -> int:
        """Tasks on the server's event loop."""

        async def count() -> int:
            return len(asyncio.all_tasks())

        assert self.sampler.loop is not None
        return asyncio.run_coroutine_threadsafe(count(), self.sampler.loop).result(10)


class KnowingSampler(PolicySampler):
    """Knows the event loop that it is used from."""

    loop: asyncio.AbstractEventLoop | None = None

    async def complete(self, request: TokenRequest) -> AsyncGenerator[TokenDelta, None]:
        self.loop = asyncio.get_running_loop()
        stream = super().complete(request)
        try:
            async for delta in stream:
                yield delta
        finally:
            await stream.aclose()


@contextmanager
def tiny_server(
    *, store=None, context_length: int = 192, limits: GatewayLimits | None = None, cache_mib: int = 8
) -> Iterator[TinyServer]:
    """Serve a random model of a few thousand weights under the name `tiny`."""
    tokenizer = tiny_tokenizer()
    model, engine = tiny_model(vocabulary=len(tokenizer)), EngineSettings(cache_mib=cache_mib)
    policy = Policy.load(model, lora=LoraSettings(), engine=engine, device="cpu")
    try:
        sampler = KnowingSampler(
            policy.engine, base_name="base", adapters=[DEFAULT_ADAPTER], context_length=context_length
        )
        with MiniLLMServer(sampler, tokenizer, model_name="tiny", store=store, limits=limits) as server:
            yield TinyServer(policy, sampler, server)
    finally:
        policy.close()
