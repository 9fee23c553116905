"""Access to the Hugging Face Hub, whose client retries each file for half a minute before it gives up.

`ask_hub` probes the Hub before the first request. While it does not answer, the client uses only its cache.
`HF_HUB_OFFLINE=1` in the environment prevents any request.
"""

from __future__ import annotations

import functools
import logging
import time

logger = logging.getLogger(__name__)

_PROBE_SECONDS = 5.0
_REMEMBERED_SECONDS = 60.0


def ask_hub() -> bool:
    """Return True if the Hub answers, and let its client use the Hub, or else only its cache."""
    from huggingface_hub import constants

    if _forbidden():
        return False
    answers = _answers(constants.ENDPOINT, int(time.monotonic() / _REMEMBERED_SECONDS))
    constants.HF_HUB_OFFLINE = not answers
    return answers


def cached(name: str, file: str, kind: str = "model") -> bool:
    """Return True if `file` of a repository of the Hub is in the cache."""
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, file, repo_type=kind), str)


@functools.cache
def _forbidden() -> bool:
    """Return whether the environment forbids requests, before `ask_hub` changes the constant."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


@functools.lru_cache(maxsize=1)
def _answers(endpoint: str, period: int) -> bool:
    import httpx  # not imported in workers that only read data sets

    try:
        httpx.head(endpoint, timeout=_PROBE_SECONDS)
    except httpx.HTTPError as error:
        logger.info("%s does not answer (%s): only the cache is used", endpoint, error)
        return False
    return True
