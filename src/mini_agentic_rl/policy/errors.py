"""What can go wrong with a model, each in one line that names the setting to change."""

from __future__ import annotations

from mini_agentic_rl.errors import UserError


class PolicyError(UserError):
    """A model could not be loaded, run or saved."""


class ModelNotFoundError(PolicyError):
    """No model under this name or path."""


class AdapterMismatchError(PolicyError):
    """The adapter was trained on another base model."""


class PromptTooLongError(PolicyError):
    """The prompt leaves no room for a single sampled token."""

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(f"the prompt has {prompt_tokens} tokens, but the context holds {limit}, answer included")
        self.prompt_tokens = prompt_tokens
        self.limit = limit


class CacheFullError(PolicyError):
    """One request alone needs more key/value blocks than the cache has."""


class QueueFullError(PolicyError):
    """More requests wait for the engine than it takes."""
