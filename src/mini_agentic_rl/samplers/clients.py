"""HTTP clients of vLLM and SGLang servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import httpx

from ..errors import UserError
from ..http import parse_json
from ..key_header import bearer_header
from ..tokens import FinishReason, SamplingParams, TokenDelta

_ERROR_CHARACTERS: Final = 300
"""Length to which a server's error message is cut."""
_LOADING_SECONDS: Final = 300.0
_LEAST_LOGPROB: Final = -9999.0
"""vLLM's log-probability of a token that cannot be drawn; JSON has no infinity."""
_LORA_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `--max-lora-rank`."""


class ReplicaLostError(Exception):
    """The server cannot be reached, broke the connection, reports an internal error, or has lost the weights."""


class RequestRefusedError(Exception):
    """The server refuses the request.

    Args:
        status: HTTP status.
        text: its error message.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.text = text


@dataclass(frozen=True)
class ServerInfo:
    """A server's description of itself."""

    model: str
    """Name of the base model in requests."""
    context_length: int
    """Maximum number of tokens of a prompt and its continuation together; 0 if unknown."""
    adapters: frozenset[str] = frozenset()
    """Names of the adapters that it has loaded."""


@dataclass(frozen=True)
class Generation:
    """A request for one continuation."""

    model: str
    """Name of the base model."""
    adapter: str | None
    """Name of a loaded adapter; None is the base model."""
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    salt: str
    """Salt of the prefix cache: keys are shared only among requests of one salt."""
    stream_interval: int = 1
    """Number of tokens that the server may send together."""


class ServerClient(ABC):
    """Client of one server.

    All calls raise `ReplicaLostError` if the server does not answer, and `RequestRefusedError` if it refuses.

    Args:
        url: address of the server.
        key: bearer token that it requires.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        self.http = httpx.AsyncClient(
            base_url=url,
            headers=bearer_header(key),
            # An answer may wait in the server's queue. `Replica.sample` detects a server that hangs.
            timeout=httpx.Timeout(None, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
        )

    async def health(self) -> None:
        """Return if the server is healthy."""
        await self.ask("GET", "/health", seconds=10.0)

    async def info(self) -> ServerInfo:
        """Return the base model and the loaded adapters of the server, from `/v1/models`.

        Raises:
            ReplicaLostError: it lists no base model, or does not answer.
        """
        cards = _json(await self.ask("GET", "/v1/models"))["data"]
        base = next((card for card in cards if not card.get("parent")), None)
        if base is None:
            raise ReplicaLostError("/v1/models names no base model")
        return ServerInfo(
            model=base["id"],
            context_length=int(base.get("max_model_len") or 0),
            adapters=frozenset(card["id"] for card in cards if card.get("parent")),
        )

    @abstractmethod
    def stream(self, generation: Generation) -> AsyncGenerator[TokenDelta, None]:
        """Sample a continuation; closing the generator cancels it. The last delta has the finish reason."""

    @abstractmethod
    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter from a folder that the server sees under the same path."""

    @abstractmethod
    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter; one that is not loaded is no error."""

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float = 30.0,
        refuses: bool = False,
    ) -> httpx.Response:
        """Return the answer to a request that is not streamed.

        Args:
            refuses: True if the server answers bad input with status 500.

        Raises:
            ReplicaLostError: there is no answer in time, or the server reports an internal error.
            RequestRefusedError: the server refuses.
        """
        try:
            answer = await self.http.request(method, path, json=body, timeout=seconds)
        except (httpx.HTTPError, OSError) as error:
            raise ReplicaLostError(f"{path}: {str(error) or type(error).__name__}") from error
        if refuses and answer.status_code == httpx.codes.INTERNAL_SERVER_ERROR:
            raise RequestRefusedError(answer.status_code, _message(answer.text))
        _raise_for_status(answer.status_code, answer.text)
        return answer

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """Post a request and yield the JSON values of the server-sent events of its answer.

        Closing the generator closes the connection, which cancels the request on the server.
        """
        try:
            async with self.http.stream("POST", path, json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    _raise_for_status(answer.status_code, (await answer.aread()).decode(errors="replace"))
                async for line in answer.aiter_lines():
                    if not line.startswith("data:"):
                        continue
                    data = line[5:].strip()
                    if data == "[DONE]":
                        return
                    value = parse_json(data)
                    if isinstance(value, dict) and "error" in value:
                        raise ReplicaLostError(f"{path}: {_message(data)}")
                    yield value
        except (httpx.HTTPError, OSError) as error:
            raise ReplicaLostError(f"{path}: {str(error) or type(error).__name__}") from error


class VllmClient(ServerClient):
    """vLLM: `/v1/completions` with token ids.

    The server has to run with `--logprobs-mode processed_logprobs`: without it the log-probabilities are those of
    temperature 1.
    """

    async def stream(self, generation: Generation) -> AsyncGenerator[TokenDelta, None]:
        sampling = generation.sampling
        body = {
            **_common_settings(sampling),
            "model": generation.adapter or generation.model,
            "prompt": list(generation.prompt_ids),
            "max_tokens": sampling.max_tokens,
            "min_tokens": sampling.min_tokens,
            "seed": sampling.seed,
            "logprobs": max(1, sampling.top_logprobs),
            "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "stream_interval": generation.stream_interval,
            "cache_salt": generation.salt,
        }
        last: TokenDelta | None = None
        cached = 0
        try:
            async with aclosing(self.events("/v1/completions", body)) as values:
                async for value in values:
                    details = (value.get("usage") or {}).get("prompt_tokens_details") or {}
                    cached = int(details.get("cached_tokens") or 0) or cached
                    for choice in value["choices"]:
                        delta = _vllm_delta(choice, sampling.top_logprobs)
                        if delta.finish_reason is None:
                            yield delta
                        else:
                            last = delta
        except RequestRefusedError as error:
            if error.status == httpx.codes.NOT_FOUND:  # the adapter, or the route
                raise ReplicaLostError(error.text) from error
            raise
        if last is None:
            raise ReplicaLostError("/v1/completions: the answer broke off")
        # The server reports the number of cached tokens after the last token.
        yield replace(last, cached_tokens=cached)

    async def load_adapter(self, name: str, folder: Path) -> None:
        body = {"lora_name": name, "lora_path": str(folder)}
        await self.ask("POST", "/v1/load_lora_adapter", body, seconds=_LOADING_SECONDS, refuses=True)

    async def unload_adapter(self, name: str) -> None:
        try:
            await self.ask("POST", "/v1/unload_lora_adapter", {"lora_name": name})
        except RequestRefusedError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise


class SglangClient(ServerClient):
    """SGLang: `/generate` with token ids. Written from its source; not tested with a real server.

    The server must not run with SGLANG_RETURN_ORIGINAL_LOGPROB, which returns log-probabilities of temperature 1.
    """

    async def stream(self, generation: Generation) -> AsyncGenerator[TokenDelta, None]:
        sampling = generation.sampling
        settings = {
            **_common_settings(sampling),
            "max_new_tokens": sampling.max_tokens,
            "min_new_tokens": sampling.min_tokens,
            "stream_interval": generation.stream_interval,
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
        received = 0
        ended = False
        try:
            async with aclosing(self.events("/generate", body)) as values:
                async for value in values:
                    delta = _sglang_delta(value["meta_info"], received, sampling.top_logprobs)
                    received += len(delta.token_ids)
                    ended = delta.finish_reason is not None
                    yield delta
        except RequestRefusedError as error:
            if generation.adapter is not None and "lora" in error.text.lower():
                raise ReplicaLostError(error.text) from error
            raise
        if not ended:
            raise ReplicaLostError("/generate: the answer broke off")

    async def load_adapter(self, name: str, folder: Path) -> None:
        await self._post("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    async def unload_adapter(self, name: str) -> None:
        try:
            await self._post("/unload_lora_adapter", {"lora_name": name})
        except RequestRefusedError as error:
            if error.status != httpx.codes.BAD_REQUEST:  # the adapter is not loaded
                raise

    async def _post(self, path: str, body: Mapping[str, Any]) -> None:
        answer = _json(await self.ask("POST", path, body, seconds=_LOADING_SECONDS))
        if isinstance(answer, dict) and not answer.get("success", True):
            text = str(answer.get("error_message") or answer.get("message") or "refused without a reason")
            raise RequestRefusedError(httpx.codes.BAD_REQUEST, text)


def refusal(url: str, error: RequestRefusedError, rank: int) -> UserError:
    """Return an error of one line that says how to start the server so that it does not refuse.

    Args:
        rank: largest rank of the adapters.
    """
    text, lower = error.text, error.text.lower()
    setting = "sampler_url"
    if "token ids" in text and error.status == httpx.codes.OK:
        advice = f"the server {url}: {text}; it has to be a vLLM of 0.10.2 or newer, or an SGLang"
    elif "rank" in lower:
        allowed = max_lora_rank(rank)
        advice = f"the server {url} takes no adapter of rank {rank}: start it with --max-lora-rank {allowed}"
        advice += f" (it says: {text})"
        setting = "lora_r"
    elif "lora" in lower or error.status in (httpx.codes.NOT_FOUND, httpx.codes.METHOD_NOT_ALLOWED):
        advice = f"the server {url} loads no adapters: start it with --enable-lora and "
        advice += f"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 (it says: {text})"
    elif "vocab" in lower or "out of" in lower:
        advice = f"the server {url} serves another base model (it says: {text})"
    else:
        advice = f"the server {url} refuses: {text}"
    return UserError(advice, setting=setting)


def max_lora_rank(rank: int) -> int:
    """Return the smallest `--max-lora-rank` of vLLM for adapters of this rank."""
    return next((bound for bound in _LORA_RANKS if bound >= rank), rank)


def _common_settings(sampling: SamplingParams) -> dict[str, Any]:
    """Return the settings that vLLM and SGLang name alike. None is left out: the server would use its own default."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        # Only the end tokens of the request end an answer.
        "ignore_eos": True,
        "stop_token_ids": list(sampling.stop_token_ids),
    }


def _vllm_delta(choice: Mapping[str, Any], top: int) -> TokenDelta:
    ids = choice.get("token_ids")
    if ids is None and choice.get("text"):
        raise RequestRefusedError(httpx.codes.OK, "the server returns no token ids")
    ids = tuple(ids or ())
    scores = choice.get("logprobs") or {}
    logprobs = tuple(_LEAST_LOGPROB if value is None else value for value in scores.get("token_logprobs") or ())
    if len(logprobs) != len(ids):
        raise RequestRefusedError(
            httpx.codes.OK, f"the server returns {len(ids)} token ids and {len(logprobs)} log-probabilities"
        )
    top_logprobs: list[tuple[tuple[int, float], ...]] = []
    for each in (scores.get("top_logprobs") or ()) if top else ():
        best = sorted((each or {}).items(), key=lambda pair: -pair[1])[:top]
        top_logprobs.append(tuple((int(name.rpartition(":")[2]), value) for name, value in best))
    return TokenDelta(ids, logprobs, tuple(top_logprobs), finish_reason=_finish_reason(choice.get("finish_reason")))


def _sglang_delta(meta: Mapping[str, Any], received: int, top: int) -> TokenDelta:
    """Return the new tokens of an event, which has all tokens so far or, with a setting of the server, the new ones.

    Args:
        received: number of tokens of earlier events.
    """
    tokens: Sequence[Any] = meta.get("output_token_logprobs") or ()
    alternatives: Sequence[Any] = meta.get("output_top_logprobs") or () if top else ()
    if len(tokens) >= int(meta.get("completion_tokens") or 0):
        tokens, alternatives = tokens[received:], alternatives[received:]
    reason = meta.get("finish_reason")
    return TokenDelta(
        tuple(int(each[1]) for each in tokens),
        tuple(float(each[0]) for each in tokens),
        tuple(tuple((int(pair[1]), float(pair[0])) for pair in each) for each in alternatives),
        finish_reason=_finish_reason(reason.get("type") if isinstance(reason, dict) else reason),
        cached_tokens=int(meta.get("cached_tokens") or 0),
    )


def _finish_reason(reason: str | None) -> FinishReason | None:
    if reason is None or reason in ("stop", "length"):
        return reason  # type: ignore[return-value]  # one of the names above
    raise ReplicaLostError(f"the server aborted the answer: {reason}")


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise ReplicaLostError(f"{answer.request.url.path} does not answer with JSON") from error


def _raise_for_status(status: int, text: str) -> None:
    if status >= httpx.codes.INTERNAL_SERVER_ERROR or status == httpx.codes.TOO_MANY_REQUESTS:
        raise ReplicaLostError(f"status {status}: {_message(text)}")
    if status >= httpx.codes.BAD_REQUEST:
        raise RequestRefusedError(status, _message(text))


def _message(text: str) -> str:
    """Return the error message in the body of an answer, in one line."""
    try:
        value = parse_json(text)
    except ValueError:
        value = text
    while isinstance(value, dict):
        value = next((value[key] for key in ("error", "message", "detail") if value.get(key)), str(value))
    return " ".join(str(value).split())[:_ERROR_CHARACTERS]
