"""What can go wrong with a request, each in the shape in which OpenAI's API reports it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class GatewayError(Exception):
    """An error that the client is told about: an HTTP status and OpenAI's error object."""

    status = 500
    kind = "server_error"

    def __init__(
        self, message: str, *, param: str | None = None, code: str | None = None, kind: str | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind or self.kind
        self.message = message
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        """The JSON body of the answer."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """Headers to send along."""
        return {}


class BadRequestError(GatewayError):
    """The request cannot be served as it is; `param` names the field at fault."""

    status = 400
    kind = "invalid_request_error"


class AuthenticationError(GatewayError):
    """The bearer token is missing or wrong."""

    status = 401
    kind = "authentication_error"


class NotFoundError(GatewayError):
    """No such model, rollout or attempt."""

    status = 404
    kind = "invalid_request_error"


class UnknownModelError(NotFoundError):
    """Nothing is served under the name that was asked for; the message tells those that there are."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        super().__init__(
            f"there is no model {name!r} here; ask for one of: {', '.join(known) or 'none'}",
            param="model",
            code="model_not_found",
        )


class BodyTooLargeError(GatewayError):
    """The request's body exceeds the bound."""

    status = 413
    kind = "invalid_request_error"


class ContextLengthError(GatewayError):
    """The prompt leaves no room for a continuation."""

    status = 400
    kind = "invalid_request_error"

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(
            f"This model's maximum context length is {limit} tokens, but the messages have {prompt_tokens} tokens. "
            "Shorten the messages, or serve a model with a longer context.",
            param="messages",
            code="context_length_exceeded",
        )
        self.prompt_tokens = prompt_tokens
        self.limit = limit


class OverloadedError(GatewayError):
    """The backend takes no more requests for now."""

    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str = "The server is busy; try again shortly.", *, retry_after: float = 1.0) -> None:
        super().__init__(message, code="rate_limit_exceeded")
        self.retry_after = retry_after

    def headers(self) -> dict[str, str]:
        return {"Retry-After": f"{self.retry_after:g}"}


class UnavailableError(GatewayError):
    """The backend gave up on the request."""

    status = 503


class RecordingError(GatewayError):
    """The call was served but could not be recorded, so the answer is withheld."""


class DrainingError(GatewayError):
    """The server is about to stop and takes no new requests."""

    status = 503

    def __init__(self) -> None:
        super().__init__("the server is stopping; try again in a moment", code="server_stopping")

    def headers(self) -> dict[str, str]:
        return {"Retry-After": "5", "Connection": "close"}


class RolloutBudgetError(GatewayError):
    """The rollout has asked for all that it may. Status 403: no SDK tries such a request again."""

    status = 403
    kind = "permission_error"

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}; its agent has to stop", code="rollout_budget_exceeded")
