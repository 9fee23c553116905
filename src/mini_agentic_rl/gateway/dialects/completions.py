"""OpenAI's text completions: the prompt is text or token ids, without a chat template (`ChatRequest.raw_prompt`).

Evaluation harnesses that render prompts themselves use it. Only a gateway that samples serves it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from ...http import ANYBODY, BadRequestError, Body, checked
from .base import CallScope, Dialect, Exchange, Json, server_sent
from .parameters import passed_on

_USUAL_TOKENS: Final = 16
"""OpenAI's default of `max_tokens`."""

_AS_CHAT: Final = (
    *("model", "temperature", "top_p", "n", "stop", "stream", "stream_options", "response_format"),
    *("continue_final_message", "add_generation_prompt"),
)
"""Fields with the same meaning in a chat request, which validates them."""


class CompletionRequest(Body):
    """The fields of `POST /v1/completions` that a chat request lacks, or has in another form."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int | None = Field(default=None, ge=1)
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None


class CompletionsDialect(Dialect):
    """`POST /v1/completions`."""

    path = "/v1/completions"
    request = CompletionRequest
    further = _AS_CHAT

    def open(self, body: Json, scope: CallScope, key: str = ANYBODY) -> CompletionExchange:
        request = checked(CompletionRequest, body)
        for name, value in (("echo", request.echo), ("suffix", request.suffix)):
            if value:
                raise BadRequestError(f"{name} is not served: leave it out", param=name)
        if request.best_of is not None and request.best_of != (body.get("n") or 1):
            raise BadRequestError("best_of is not served: ask for n answers", param="best_of")
        chat: Json = {name: body[name] for name in _AS_CHAT if name in body} | passed_on(body, but=("echo", "best_of"))
        chat |= {
            "messages": [{"role": "user", "content": ""}],
            "raw_prompt": _single_prompt(request.prompt),
            "max_tokens": request.max_tokens or _USUAL_TOKENS,
        }
        if request.logprobs is not None:
            chat |= {"logprobs": True, "top_logprobs": request.logprobs}
        return CompletionExchange(chat)


class CompletionExchange(Exchange):
    """A request for a completion."""

    def __init__(self, chat: Json) -> None:
        super().__init__(chat)
        self._offset = 0
        """Characters of the answer so far, for `text_offset`."""

    def answer(self, completion: Json) -> Json:
        return self._translated(completion, "message")

    def events(self, chunk: Json) -> bytes:
        return server_sent(self._translated(chunk, "delta"))

    def _translated(self, answer: Json, part: str) -> Json:
        prompt_ids = answer.get("prompt_token_ids")
        kept = {name: value for name, value in answer.items() if name != "prompt_token_ids"}
        choices = []
        for choice in answer["choices"]:
            body = {
                "index": choice["index"],
                "text": choice[part].get("content") or "",
                "logprobs": self._logprobs(choice.get("logprobs")),
                "finish_reason": choice["finish_reason"],
            }
            body |= {name: choice[name] for name in ("stop_reason", "token_ids") if name in choice}
            if prompt_ids is not None:
                body["prompt_token_ids"] = prompt_ids
            choices.append(body)
        identity = str(answer["id"]).replace("chatcmpl-", "cmpl-", 1)
        return {**kept, "id": identity, "object": "text_completion", "choices": choices}

    def _logprobs(self, logprobs: Json | None) -> Json | None:
        if not logprobs:
            return None
        entries = logprobs["content"]
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry["token"])
        tops: list[dict[str, Any]] = [{top["token"]: top["logprob"] for top in e["top_logprobs"]} for e in entries]
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": tops if any(tops) else None,
            "text_offset": offsets,
        }


def _single_prompt(prompt: str | list[int] | list[str] | list[list[int]]) -> str | list[int]:
    """Return the only prompt of a request; raises BadRequestError if there are none or several."""
    if isinstance(prompt, str):
        return prompt
    ids = [item for item in prompt if isinstance(item, int)]
    if ids:
        return ids
    prompts = [item for item in prompt if not isinstance(item, int)]
    if len(prompts) != 1 or not prompts[0]:
        message = f"prompt: expected one prompt, not {len(prompts)}: make a request for each"
        raise BadRequestError(message, param="prompt")
    return prompts[0]
