"""The server of `mini-agentic-rl dashboard`: the pages alone, on a thread of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from ...http import Admission, AdmittingServer, ApiKeys, RequestLimits, new_app, openai_response
from .app import close_sources, dashboard_pages
from .sources import ShownRun


class DashboardServer(AdmittingServer):
    """Serve a dashboard until it is stopped, which also closes its runs.

    Args:
        sources: the runs, at least one.
        host: address to listen on; this computer alone by default.
        port: port to listen on; 0 takes a free one, which `port` then tells.
        api_keys: keys that are accepted; needed where `host` is not this computer's loopback.
    """

    def __init__(
        self, sources: Sequence[ShownRun], host: str = "127.0.0.1", port: int = 8090, *, api_keys: Sequence[str] = ()
    ) -> None:
        keys = ApiKeys(api_keys)
        admission = Admission(RequestLimits(), keys)
        pages = dashboard_pages(sources, admission)

        @asynccontextmanager
        async def closing(app: Starlette) -> AsyncIterator[None]:
            yield
            await asyncio.shield(close_sources(sources))

        app = new_app(
            openai_response,
            keys,
            title="mini-agentic-rl dashboard",
            about="Runs, rollouts, groups and tokens: the page is at /.",
            pages=pages,
            lifespan=closing,
            open_paths=(),
        )
        super().__init__(app, admission, host, port, "dashboard")
