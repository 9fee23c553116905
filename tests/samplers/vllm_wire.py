"""A server that speaks vLLM's wire over our own engine and a tiny model, so that its tokens and numbers are real.

It can be made to fail as servers do: `Faults` says how.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from mini_agentic_rl.http import Admission, AdmittingServer, RequestLimits
from mini_agentic_rl.policy import EngineSettings, LoraSettings, Policy, load_weights
from mini_agentic_rl.samplers import PolicySampler
from mini_agentic_rl.tokens import SamplingParams, TokenRequest

SLOTS = ("slot-a", "slot-b", "slot-c", "slot-d", "slot-e")
"""Adapters of the policy that stand for what is loaded; a server has room for so many."""


@dataclass
class Faults:
    """What is wrong with the server."""

    no_lora: bool = False
    no_token_ids: bool = False
    raw_logprobs: bool = False
    ignores_adapters: bool = False
    """It loads them, and samples from the bare model."""
    stale_cache: bool = False
    """It samples with the adapter that it has loaded first, whichever is asked for."""
    max_rank: int = 16
    max_model_len: int = 512
    ill: bool = False
    """`/health` and all else answer with 503."""
    break_after: int | None = None
    """Tokens after which answers break off."""
    hang_after: int | None = None
    """Tokens after which answers stand still."""


@dataclass
class Asked:
    """A request that was served."""

    model: str
    prompt: list[int]
    seed: int | None
    salt: str
    tokens: int = 0
    cut: bool = False
    """True if the client left before the end."""


@dataclass
class VllmWireServer:
    """The server and what it has seen."""

    model: Any
    lora: LoraSettings = field(default_factory=lambda: LoraSettings(r=4, alpha=8))
    port: int = 0
    host: str = "127.0.0.1"
    deterministic: bool = False
    """Sample what depends on prompt and seed alone, to the last bit."""

    def __post_init__(self) -> None:
        self.faults = Faults()
        self.asked: list[Asked] = []
        self.loaded: dict[str, str] = {}
        """Slot of each name."""
        self.ever_loaded: list[str] = []
        engine = EngineSettings(cache_mib=8, deterministic=self.deterministic)
        self.policy = Policy.load(
            self.model, lora=self.lora, adapters=dict.fromkeys(SLOTS), engine=engine, device="cpu"
        )
        self.slots = list(SLOTS)
        self.sampler = PolicySampler(
            self.policy.engine, base_name="base", adapters=list(self.policy.model.versions), context_length=512
        )
        self.thread: AdmittingServer | None = None
        self.start()

    @property
    def url(self) -> str:
        assert self.thread is not None
        return self.thread.root

    def start(self) -> None:
        """Begin to listen, at the port of the last time."""
        self.thread = AdmittingServer(
            self._app(), Admission(RequestLimits()), self.host, self.port, "test vLLM"
        ).start()
        self.port = self.thread.port

    def kill(self) -> None:
        """Break all connections, and forget what was loaded, as a process that is killed does."""
        assert self.thread is not None
        self.faults.break_after = 0
        self.thread.stop(0.0)
        self.faults.break_after = None
        self.loaded.clear()
        self.slots = list(SLOTS)

    def close(self) -> None:
        if self.thread is not None:
            self.thread.stop(0.0)
        self.policy.close()

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.middleware("http")
        async def ill(request: Request, call_next: Any) -> Any:
            return PlainTextResponse("ill", 503) if self.faults.ill else await call_next(request)

        @app.get("/health")
        async def health() -> PlainTextResponse:
            return PlainTextResponse("")

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            base = {"id": "m", "root": "tiny", "parent": None, "max_model_len": self.faults.max_model_len}
            return {"data": [base, *({"id": name, "root": "-", "parent": "m"} for name in self.loaded)]}

        @app.post("/v1/load_lora_adapter")
        async def load(request: Request) -> Any:
            return await self._load(await request.json())

        @app.post("/v1/unload_lora_adapter")
        async def unload(request: Request) -> Any:
            name = (await request.json())["lora_name"]
            if name not in self.loaded:
                return _error(404, f"The lora adapter '{name}' cannot be found.")
            self.slots.append(self.loaded.pop(name))
            return PlainTextResponse("Success")

        @app.post("/v1/completions")
        async def complete(request: Request) -> Any:
            return await self._complete(await request.json())

        return app

    async def _load(self, body: dict[str, str]) -> Any:
        name, folder = body["lora_name"], Path(body["lora_path"])
        if self.faults.no_lora:
            return _error(404, "Not Found")
        config = json.loads((folder / "adapter_config.json").read_text())
        if config["r"] > self.faults.max_rank:
            return _error(500, f"LoRA rank {config['r']} is greater than max_lora_rank {self.faults.max_rank}.")
        if not self.slots:  # vLLM keeps the latest adapters; a learner that was killed has not unloaded its own
            self.slots.append(self.loaded.pop(next(iter(self.loaded))))
        slot = self.slots.pop(0)
        await asyncio.to_thread(self._load_slot, folder, slot)
        self.loaded[name] = slot
        self.ever_loaded.append(name)
        return PlainTextResponse("Success")

    def _load_slot(self, folder: Path, slot: str) -> None:
        def job() -> None:
            load_weights(self.policy.model, folder, slot)
            self.policy.engine.weights_changed(slot)

        self.policy.run(job)

    async def _complete(self, settings: dict[str, Any]) -> Any:
        name = settings["model"]
        if name != "m" and name not in self.loaded:
            return _error(404, f"The model `{name}` does not exist.")
        prompt = settings["prompt"]
        if max(prompt) >= self.policy.model.vocab_size:
            return _error(400, "token id out of vocabulary")
        adapter = self._adapter(name)
        asked = Asked(name, prompt, settings["seed"], settings["cache_salt"])
        self.asked.append(asked)
        request = TokenRequest(
            tuple(prompt),
            SamplingParams(
                temperature=settings["temperature"],
                top_p=settings["top_p"],
                top_k=max(0, settings["top_k"]),
                max_tokens=settings["max_tokens"],
                seed=settings["seed"],
                stop_token_ids=tuple(settings["stop_token_ids"]),
                # The temperature can be undone where the whole distribution is known.
                top_logprobs=self.policy.model.vocab_size if self.faults.raw_logprobs else settings["logprobs"],
                logit_bias={int(key): value for key, value in (settings["logit_bias"] or {}).items()},
            ),
            adapter,
        )
        return StreamingResponse(self._events(request, asked), media_type="text/event-stream")

    def _adapter(self, name: str) -> str | None:
        if name == "m" or self.faults.ignores_adapters:
            return None
        return self.loaded[self.ever_loaded[0] if self.faults.stale_cache else name]

    async def _events(self, request: TokenRequest, asked: Asked) -> AsyncIterator[str]:
        stream = self.sampler.complete(request)
        temperature = request.sampling.temperature or 1.0
        try:
            async for delta in stream:
                for at in range(max(1, len(delta.token_ids))):
                    if self.faults.break_after is not None and asked.tokens >= self.faults.break_after:
                        raise ConnectionError
                    if self.faults.hang_after is not None and asked.tokens >= self.faults.hang_after:
                        await asyncio.sleep(3600)
                    last = at >= len(delta.token_ids) - 1
                    reason = delta.finish_reason if last else None
                    ids = list(delta.token_ids[at : at + 1])
                    told = list(delta.logprobs[at : at + 1])
                    top = [dict(one) for one in delta.top_logprobs[at : at + 1]]
                    if self.faults.raw_logprobs:
                        whole = np.array(list(top[0].values())) * temperature
                        told = [float(told[0] * temperature - np.log(np.exp(whole).sum()))]
                    asked.tokens += len(ids)
                    yield f"data: {json.dumps({'choices': [self._choice(ids, told, top, reason)]})}\n\n"
            yield f"data: {json.dumps({'choices': [], 'usage': {'prompt_tokens': len(asked.prompt)}})}\n\n"
            yield "data: [DONE]\n\n"
        except (asyncio.CancelledError, GeneratorExit):
            asked.cut = True
            raise
        finally:
            await stream.aclose()

    def _choice(self, ids: list[int], told: list[float], top: list[dict[int, float]], reason: Any) -> Any:
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "text": "?"}
        if not self.faults.no_token_ids:
            choice["token_ids"] = ids
        named = [{f"token_id:{one}": value for one, value in best.items()} for best in top]
        return choice | {"logprobs": {"token_logprobs": told, "top_logprobs": named}}


async def until_all_are_well(pool: Any, seconds: float) -> None:
    """Return once every server of a pool is well, those that were taken out among them."""
    end = time.monotonic() + seconds
    while not all(replica.well for replica in pool.replicas):
        assert time.monotonic() < end, "a server is not well"
        await asyncio.sleep(0.05)


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "x", "code": status}}, status)
