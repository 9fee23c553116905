"""Errors of requests to the gateway, in addition to those of any server (`mini_agentic_rl.http`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..http import BadRequestError, HttpError


class NotFoundError(HttpError):
    """There is no such model, rollout, attempt or response."""

    status = 404


class UnknownModelError(NotFoundError):
    """The model is not served; the message lists the served models."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"there is no model {name!r} here; ask for one of: {', '.join(known) or 'none'}",
            param="model",
            code="model_not_found",
        )


class BeyondContextError(BadRequestError):
    """The request is longer than any that fits into the context; it is not rendered.

    Args:
        context_length: in tokens.
        messages: number of messages, if that is more.
        max_bytes: bytes of the longest body that is read, if the body is longer.
    """

    def __init__(self, context_length: int, *, messages: int = 0, max_bytes: int = 0) -> None:
        reason = (
            f"so that requests of more than {max_bytes} bytes are not read. Shorten the messages"
            if max_bytes
            else f"but there are {messages} messages. Send fewer"
        )
        super().__init__(
            f"This model's maximum context length is {context_length} tokens, {reason}, or serve a model with a longer "
            "context.",
            param="messages",
            code="context_length_exceeded",
        )


class UnavailableError(HttpError):
    """The sampler gave up on the request."""

    status = 503


class RecordingError(HttpError):
    """The store failed, so the answer is withheld. The log has the reason, which may name files of the server."""

    status = 503

    def __init__(self) -> None:
        message = "the store failed, so nothing could be recorded; the server's log says why"
        super().__init__(message, code="recording_failed")


class RolloutBudgetError(HttpError):
    """The rollout has used up its budget. SDKs do not retry status 403."""

    status = 403

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; its agent has to stop", code="rollout_budget_exceeded")


_REMEDY: Final = (
    "Name it: make the call in the task or a thread that the agent has started, ask the rollout's own URL "
    "(llm.get_base_url(rollout_id, attempt_id)), give a process env=rollout_environment(), or run it inside of "
    "`with unrecorded():` if it belongs to no rollout"
)


class UnnamedCallError(BadRequestError):
    """It is unknown to which rollout the call belongs. SDKs do not retry status 400."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"it is not known which rollout this call belongs to: {reason}. {_REMEDY}", code="rollout_unnamed"
        )
