"""Errors of the policy: each message is one line with the setting to change."""

from __future__ import annotations

from ..errors import UserError, first_line


class PolicyError(UserError):
    """Report that a model cannot be loaded, run or saved."""


class ModelNotFoundError(PolicyError):
    """Report that there is no model under this name or path."""


def cannot_load(model: str, error: Exception) -> ModelNotFoundError:
    """Return the error of a model that transformers cannot load, with the first line of its reason."""
    return ModelNotFoundError(
        f"{model!r} cannot be loaded: {first_line(error)} (give 'embedded', a local folder or a Hugging Face id)",
        setting="model",
    )


def refuse_unknown_token(largest_id: int, vocabulary: int) -> None:
    """Refuse a token id that the model has no embedding for, before torch fails with an index."""
    if largest_id >= vocabulary:
        raise PolicyError(
            f"the tokenizer gives the token id {largest_id}, but the model knows only 0..{vocabulary - 1}: the "
            "tokenizer is that of another model",
            setting="model",
        )


class AdapterMismatchError(PolicyError):
    """Report that the adapter was trained on another base model."""


class PromptTooLongError(PolicyError):
    """Report a prompt that leaves no room for a single sampled token."""

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(f"the prompt has {prompt_tokens} tokens, but the context holds {limit}, answer included")
        self.prompt_tokens = prompt_tokens
        self.limit = limit


class CacheFullError(PolicyError):
    """Report a request that alone needs more key/value blocks than the cache has."""


class QueueFullError(PolicyError):
    """Report that as many requests wait as the engine takes."""
