"""Answers in the shape of OpenAI's chat completions, as plain dicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..render.answer_reader import Piece
from ..render.thinking import Thought
from ..render.tokenizer import Tokenizer
from ..tool_formats import ToolCall
from .read import Choice


def head(kind: str, response_id: str, created: int, model: str, version: int) -> dict[str, Any]:
    """The fields that all parts of an answer share; the fingerprint names the policy version that sampled it."""
    return {
        "id": response_id,
        "object": kind,
        "created": created,
        "model": model,
        "system_fingerprint": f"policy-{version}",
    }


def usage(prompt_tokens: int, choices: Sequence[Choice]) -> dict[str, Any]:
    """Token counts; with several choices the prompt counts once."""
    completion_tokens = sum(len(choice.token_ids) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": max((choice.cached_tokens for choice in choices), default=0)},
    }


def logprobs(tokenizer: Tokenizer, choice: Choice, start: int = 0) -> dict[str, Any]:
    """Log-probabilities of the tokens from `start` on, one entry for each sampled id, the end token included."""
    content = []
    for position in range(start, len(choice.token_ids)):
        entry = _token(tokenizer, choice.token_ids[position], choice.logprobs[position])
        top = choice.top_logprobs[position] if choice.top_logprobs else ()
        entry["top_logprobs"] = [_token(tokenizer, token_id, value) for token_id, value in top]
        content.append(entry)
    return {"content": content, "refusal": None}


def _token(tokenizer: Tokenizer, token_id: int, value: float) -> dict[str, Any]:
    text = tokenizer.decode([token_id], skip_special_tokens=False)
    # A token that is part of a character has no text of its own, and so no bytes that could be told.
    whole = "\N{REPLACEMENT CHARACTER}" not in text
    # JSON has no infinity; OpenAI writes -9999.0 for what is out of reach.
    return {"token": text, "logprob": max(value, -9999.0), "bytes": list(text.encode()) if whole else None}


def final_choice(tokenizer: Tokenizer, choice: Choice, *, with_logprobs: bool, with_ids: bool) -> dict[str, Any]:
    """A complete answer."""
    result: dict[str, Any] = {
        "index": choice.index,
        "message": {**choice.message(), "refusal": None},
        "logprobs": logprobs(tokenizer, choice) if with_logprobs else None,
        "finish_reason": choice.api_finish_reason,
    }
    if choice.stop_string is not None:
        result["stop_reason"] = choice.stop_string
    if with_ids:
        result["token_ids"] = list(choice.token_ids)
    return result


def chunk_choice(choice: Choice, pieces: Sequence[Piece], *, first: bool, calls_before: int) -> dict[str, Any]:
    """New pieces of a streamed answer; `calls_before` is how many tool calls it has had already."""
    delta: dict[str, Any] = {"role": "assistant", "content": ""} if first else {}
    text = "".join(piece for piece in pieces if isinstance(piece, str))
    if text:
        delta["content"] = text
    thought = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    if thought:
        delta["reasoning_content"] = thought
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    if calls:
        delta["tool_calls"] = [
            {"index": calls_before + offset, **call.as_message()} for offset, call in enumerate(calls)
        ]
    return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
