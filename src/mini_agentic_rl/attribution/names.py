"""Name the attempt and the agent of a call that is about to be made, for the server that gets it."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

from .baggage import NamedCall
from .caller import Origin, Outside, current, current_agent, gateway_is_ours, origin_of_url, running_attempts
from .environment import attempt_of_environment

ENDED: Final = "it was made in the context of an attempt that has ended"
_OF_ATTEMPT: Final = re.compile(r"/rollout/[^/]+/attempt/[^/]+(/|$)")
NOWHERE: Final = "it was made outside of every rollout's context, in a process that runs rollouts"


def is_recorded(url: str) -> bool:
    """Return True if calls that are made here to this address are recorded by a gateway, which is told whose they are
    by the address itself or by what `watch_clients` adds."""
    return bool(_OF_ATTEMPT.search(urlsplit(url).path)) or names_for(origin_of_url(url)) is not None


def names_for(origin: Origin) -> NamedCall | None:
    """Return the names of a call that is made here; None where the server is no gateway, or nobody has to know.

    The context says whose call it is, else the environment. Where neither does while agents run in this process, the
    call might be of any of them, and says so.
    """
    where, agent, running = current.get(), current_agent(), running_attempts()
    if isinstance(where, Outside):
        return None
    ours = gateway_is_ours(origin)
    if where is not None:
        if not ours and origin not in where.origins:
            return None
        return where.named(agent) if where in running else NamedCall(agent=agent, unnamed=ENDED)
    inherited = attempt_of_environment()
    if inherited is not None:
        attempt, its_agent = inherited
        return attempt.named(agent or its_agent) if ours or origin in attempt.origins else None
    if running and (ours or any(origin in attempt.origins for attempt in running)):
        return NamedCall(agent=agent, unnamed=NOWHERE)
    return None
