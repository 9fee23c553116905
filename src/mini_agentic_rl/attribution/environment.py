"""The attempt in the environment of a process that its agent has started.

A process of any language that takes its endpoint from `OPENAI_BASE_URL` asks the URL of the rollout. One that asks a
fixed address is attributed as soon as it imports `mini_agentic_rl`, which reads the variables below.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Final

from ..errors import UserError
from ..semconv import LightningResourceAttributes
from .baggage import read_baggage
from .caller import CallingAttempt, calling_attempt, current_agent, origins_of

ATTEMPT_VARIABLE: Final = "MINI_AGENTIC_RL_ATTEMPT"
"""Environment variable that names an attempt, and perhaps an agent, in the form of the `baggage` header."""
GATEWAYS_VARIABLE: Final = "MINI_AGENTIC_RL_GATEWAYS"
"""Environment variable with the URLs of the gateways that are told of it, with spaces in between."""

_OTEL_VARIABLE: Final = "OTEL_RESOURCE_ATTRIBUTES"


def environment_of_attempt(attempt: CallingAttempt) -> dict[str, str]:
    """Return the variables that name an attempt, and nothing else."""
    return {
        ATTEMPT_VARIABLE: attempt.named(current_agent()).text(),
        GATEWAYS_VARIABLE: " ".join(dict.fromkeys(llm.endpoint for llm in attempt.llms.values())),
    }


def rollout_environment(llm: str | None = None) -> dict[str, str]:
    """Return the environment for a process of the running agent: `subprocess.run(…, env=rollout_environment())`.

    It is this process's own, with the rollout's URL and key as `OPENAI_BASE_URL` and `OPENAI_API_KEY`, and as
    `ANTHROPIC_BASE_URL` and `ANTHROPIC_API_KEY`; the ids of the rollout in `OTEL_RESOURCE_ATTRIBUTES`, for spans; and
    what `mini_agentic_rl` reads in a process that asks a fixed address.

    Args:
        llm: name of the resource whose endpoint is meant; may be left out where all are served by one gateway.

    Raises:
        RuntimeError: no rollout runs here.
        UserError: there is no such resource, or it is not clear which is meant.
    """
    attempt = calling_attempt()
    by_url = {found.endpoint: found for found in attempt.llms.values()}
    names = ", ".join(attempt.llms) or "none"
    if llm is not None and llm not in attempt.llms:
        raise UserError(f"the rollout has no model {llm!r} behind a gateway (it has {names})")
    if llm is None and len(by_url) != 1:
        raise UserError(f"say which model the process is to ask: the rollout has {names}")
    chosen = attempt.llms[llm] if llm is not None else next(iter(by_url.values()))
    url = chosen.get_base_url(attempt.rollout_id, attempt.attempt_id)
    key = chosen.api_key or "none"
    ids = {
        LightningResourceAttributes.ROLLOUT_ID.value: attempt.rollout_id,
        LightningResourceAttributes.ATTEMPT_ID.value: attempt.attempt_id,
    }
    before = [os.environ[_OTEL_VARIABLE]] if os.environ.get(_OTEL_VARIABLE) else []
    return {
        **os.environ,
        **environment_of_attempt(attempt),
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": key,
        _OTEL_VARIABLE: ",".join([*before, *(f"{name}={value}" for name, value in ids.items())]),
    }


def attempt_of_environment() -> tuple[CallingAttempt, str | None] | None:
    """Return the attempt that this process was started for, and its agent's name; None for any other process."""
    text = os.environ.get(ATTEMPT_VARIABLE)
    return None if not text else _parsed(text, os.environ.get(GATEWAYS_VARIABLE, ""))


@lru_cache(maxsize=64)
def _parsed(text: str, gateways: str) -> tuple[CallingAttempt, str | None] | None:
    named = read_baggage([text])
    if named.rollout_id is None or named.attempt_id is None:
        return None
    return CallingAttempt(named.rollout_id, named.attempt_id, origins=origins_of(gateways.split())), named.agent
