"""SGLang: `/generate` with token ids. Written from its source; it was not tried on a server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx

from .base import (
    Generation,
    ReplicaLostError,
    RequestRefusedError,
    TokenChunk,
    WeightsMissingError,
    Wire,
    ask,
    events,
    json_of,
)
from .vllm import finish_reason

_LOADING_SECONDS: Final = 300.0


class SglangWire(Wire):
    """Speaks with an SGLang server.

    Its log-probabilities are taken after the temperature unless it runs with SGLANG_RETURN_ORIGINAL_LOGPROB.
    """

    async def stream(self, generation: Generation) -> AsyncGenerator[TokenChunk, None]:
        done = 0
        ended = False
        try:
            async with events(self.client, "/generate", _body(generation)) as values:
                async for value in values:
                    chunk = _chunk(value["meta_info"], done, generation.sampling.top_logprobs)
                    done += len(chunk.token_ids)
                    ended = chunk.finish_reason is not None
                    yield chunk
        except RequestRefusedError as error:
            if generation.adapter is not None and "lora" in error.text.lower():
                raise WeightsMissingError(error.text) from error
            raise
        if not ended:
            raise ReplicaLostError("/generate: the answer broke off")

    async def load_adapter(self, name: str, folder: Path) -> None:
        body = {"lora_name": name, "lora_path": str(folder)}
        await self._done("/load_lora_adapter", body)

    async def unload_adapter(self, name: str) -> None:
        try:
            await self._done("/unload_lora_adapter", {"lora_name": name})
        except RequestRefusedError as error:
            if error.status != httpx.codes.BAD_REQUEST:  # it says so of a name that it does not know
                raise

    async def load_weights(self, folder: Path) -> None:
        await self._done("/update_weights_from_disk", {"model_path": str(folder)})
        await ask(self.client, "POST", "/flush_cache")

    async def _done(self, path: str, body: Mapping[str, Any]) -> None:
        told = json_of(await ask(self.client, "POST", path, body, seconds=_LOADING_SECONDS))
        if isinstance(told, dict) and not told.get("success", True):
            text = str(told.get("error_message") or told.get("message") or "refused without a reason")
            raise RequestRefusedError(httpx.codes.BAD_REQUEST, text)


def _body(generation: Generation) -> dict[str, Any]:
    sampling = generation.sampling
    settings: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "ignore_eos": True,
        "stop_token_ids": list(sampling.stop_token_ids),
        "min_new_tokens": sampling.min_tokens,
        "stream_interval": generation.at_a_time,
    }
    if sampling.seed is not None:
        settings["sampling_seed"] = sampling.seed & 0x7FFFFFFF
    if sampling.logit_bias:
        settings["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    body: dict[str, Any] = {
        "input_ids": list(generation.prompt_ids),
        "sampling_params": settings,
        "return_logprob": True,
        "logprob_start_len": -1,
        "top_logprobs_num": sampling.top_logprobs,
        "stream": True,
        "extra_key": generation.salt,
    }
    if generation.adapter is not None:
        body["lora_path"] = generation.adapter
    return body


def _chunk(meta: Mapping[str, Any], done: int, top: int) -> TokenChunk:
    """Read what is new in an event; `done` tokens have come before.

    Servers tell either all tokens so far or, by another setting of theirs, the new ones.
    """
    told: Sequence[Any] = meta.get("output_token_logprobs") or ()
    likeliest: Sequence[Any] = meta.get("output_top_logprobs") or () if top else ()
    if len(told) >= int(meta.get("completion_tokens") or 0):
        told, likeliest = told[done:], likeliest[done:]
    reason = meta.get("finish_reason")
    ended = finish_reason(reason.get("type") if isinstance(reason, dict) else reason)
    return TokenChunk(
        tuple(int(each[1]) for each in told),
        tuple(float(each[0]) for each in told),
        tuple(tuple((int(one[1]), float(one[0])) for one in each) for each in likeliest),
        ended,
        int(meta.get("cached_tokens") or 0),
    )
