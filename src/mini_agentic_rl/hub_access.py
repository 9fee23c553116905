"""Access to the Hugging Face Hub, whose client tries each file again for half a minute before it gives up.

Before anything of the Hub is asked for, `ask_hub` looks once whether it answers. Where it does not, its client is told
to look into its cache alone, until the Hub answers again. `HF_HUB_OFFLINE=1` in the environment forbids asking.
"""

from __future__ import annotations

import functools
import logging
import time

logger = logging.getLogger(__name__)

_PROBE_SECONDS = 5.0
_REMEMBERED_SECONDS = 60.0


def ask_hub() -> bool:
    """Return True if the Hub answers; from here on its client asks it, or else looks into its cache alone."""
    from huggingface_hub import constants

    if _forbidden():
        return False
    answers = _answers(constants.ENDPOINT, int(time.monotonic() / _REMEMBERED_SECONDS))
    constants.HF_HUB_OFFLINE = not answers
    return answers


def cached(name: str, file: str, kind: str = "model") -> bool:
    """Return True if `file` of a repository of the Hub was fetched before."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, file, repo_type=kind), str)


@functools.cache
def _forbidden() -> bool:
    """Return what the environment said, before anything here changed it."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


@functools.lru_cache(maxsize=1)
def _answers(endpoint: str, period: int) -> bool:
    import httpx  # the workers that read data sets never ask

    try:
        httpx.head(endpoint, timeout=_PROBE_SECONDS)
    except httpx.HTTPError as error:
        logger.info("%s does not answer (%s): only its cache is looked into", endpoint, error)
        return False
    return True
