"""vLLM: `/inference/v1/generate` where the server has it (`--enable-scale-out`), else `/v1/completions`.

Both take token ids and tell token ids. Log-probabilities are as the learner computes them where the server runs with
`--logprobs-mode processed_logprobs`; without it they are those of temperature 1.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx

from ...errors import UserError
from ...tokens import FinishReason, SamplingParams
from .base import (
    Facts,
    Generation,
    ReplicaLostError,
    RequestRefusedError,
    TokenChunk,
    WeightsMissingError,
    Wire,
    ask,
    events,
)

_GENERATE: Final = "/inference/v1/generate"
_COMPLETIONS: Final = "/v1/completions"
_LOADING_SECONDS: Final = 300.0
_LEAST_LOGPROB: Final = -9999.0
"""JSON has no infinity: the server writes this for the log-probability of what cannot be."""


class VllmWire(Wire):
    """Speaks with a vLLM server."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        super().__init__(client)
        self._generates = False
        """True if the server has the route that leaves text out altogether."""

    async def facts(self) -> Facts:
        found = await super().facts()
        self._generates = await self._has(_GENERATE)
        return found

    async def _has(self, path: str) -> bool:
        """Return whether a route is there: then it finds fault with an empty request, and not with its own name."""
        try:
            await ask(self.client, "POST", path, {})
        except RequestRefusedError as error:
            return error.status in (httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY)
        except ReplicaLostError:
            return False
        return True

    async def stream(self, generation: Generation) -> AsyncGenerator[TokenChunk, None]:
        path, body = (_GENERATE, _generate(generation)) if self._generates else (_COMPLETIONS, _complete(generation))
        last: TokenChunk | None = None
        cached = 0
        try:
            async with events(self.client, path, body) as values:
                async for value in values:
                    cached = _cached(value.get("usage")) or cached
                    for choice in value["choices"]:
                        chunk = _chunk(choice, generation.sampling.top_logprobs)
                        if chunk.finish_reason is None:
                            yield chunk
                        else:
                            last = chunk
        except RequestRefusedError as error:
            # An adapter that is not there is 404, and so is a route.
            if error.status == httpx.codes.NOT_FOUND:
                raise WeightsMissingError(error.text) from error
            raise
        if last is None:
            raise ReplicaLostError(f"{path}: the answer broke off")
        # What was found in the cache is told after the last token.
        yield TokenChunk(last.token_ids, last.logprobs, last.top_logprobs, last.finish_reason, cached)

    async def load_adapter(self, name: str, folder: Path) -> None:
        body = {"lora_name": name, "lora_path": str(folder)}
        await ask(self.client, "POST", "/v1/load_lora_adapter", body, seconds=_LOADING_SECONDS, refuses=True)

    async def unload_adapter(self, name: str) -> None:
        try:
            await ask(self.client, "POST", "/v1/unload_lora_adapter", {"lora_name": name})
        except RequestRefusedError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise

    async def load_weights(self, folder: Path) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        try:
            await ask(self.client, "POST", "/collective_rpc", body, seconds=_LOADING_SECONDS)
            await ask(self.client, "POST", "/reset_prefix_cache", {})
        except RequestRefusedError as error:
            raise UserError(
                "this vLLM takes no new weights for the whole model: start it with VLLM_SERVER_DEV_MODE=1, or train an "
                f"adapter instead (it answers {error})",
                setting="full_finetune",
            ) from error


def _settings(sampling: SamplingParams) -> dict[str, Any]:
    """Return what both routes call the same. All that a server has defaults for is said: those of a model's own
    generation config would hold otherwise."""
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": sampling.seed,
        # The end tokens are those of the request and no others.
        "ignore_eos": True,
        "stop_token_ids": list(sampling.stop_token_ids),
        "min_tokens": sampling.min_tokens,
        "logprobs": max(1, sampling.top_logprobs),
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
    }


def _complete(generation: Generation) -> dict[str, Any]:
    return {
        "model": generation.adapter or generation.model,
        "prompt": list(generation.prompt_ids),
        **_settings(generation.sampling),
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "stream_interval": generation.at_a_time,
        "cache_salt": generation.salt,
    }


def _generate(generation: Generation) -> dict[str, Any]:
    settings = _settings(generation.sampling)
    settings |= {"stream_interval": generation.at_a_time, "detokenize": False}
    return {
        "model": generation.adapter or generation.model,
        "token_ids": list(generation.prompt_ids),
        "sampling_params": settings,
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": generation.salt,
    }


def _chunk(choice: Mapping[str, Any], top: int) -> TokenChunk:
    """Read a choice of either route.

    Raises:
        RequestRefusedError: it tells no token ids or no log-probabilities.
    """
    ids = choice.get("token_ids")
    if ids is None and choice.get("text"):
        raise RequestRefusedError(httpx.codes.OK, "the server tells no token ids")
    ids = tuple(ids or ())
    told = choice.get("logprobs") or {}
    best: tuple[tuple[tuple[int, float], ...], ...] = ()
    if "content" in told:
        content = told["content"] or ()
        logprobs = tuple(float(each["logprob"]) for each in content)
        if top:
            best = tuple(
                _best({one["token_id"]: one["logprob"] for one in each["top_logprobs"]}, top) for each in content
            )
    else:
        logprobs = tuple(_LEAST_LOGPROB if value is None else value for value in told.get("token_logprobs") or ())
        if top:
            best = tuple(
                _best({int(name.rpartition(":")[2]): value for name, value in (each or {}).items()}, top)
                for each in told.get("top_logprobs") or ()
            )
    if len(logprobs) != len(ids):
        raise RequestRefusedError(
            httpx.codes.OK, f"the server tells {len(ids)} token ids and {len(logprobs)} log-probabilities"
        )
    return TokenChunk(ids, logprobs, best, finish_reason(choice.get("finish_reason")))


def _cached(usage: Mapping[str, Any] | None) -> int:
    details = (usage or {}).get("prompt_tokens_details") or {}
    return int(details.get("cached_tokens") or 0)


def _best(found: Mapping[int, float], count: int) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(found.items(), key=lambda pair: -pair[1])[:count])


def finish_reason(told: str | None) -> FinishReason | None:
    """Return the reason for which an answer ended, in our words.

    Raises:
        ReplicaLostError: the server gave it up.
    """
    if told is None or told in ("stop", "length"):
        return told  # type: ignore[return-value]  # one of the names above
    raise ReplicaLostError(f"the server gave the answer up: {told}")
