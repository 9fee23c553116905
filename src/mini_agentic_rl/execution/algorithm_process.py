"""The algorithm in a process of its own, for runs whose main process holds the runners."""

from __future__ import annotations

import asyncio
import contextlib

from ..runner.processes import Child, describe_exit
from .events import ExecutionEvent
from .side_process import SideSetup
from .stopping import Patience, stop

_ENTRY = f"{__package__}.side_process:run_algorithm"


class AlgorithmProcess:
    """Runs the algorithm once. What it keeps in memory stays in its process."""

    def __init__(self, setup: SideSetup, patience: Patience) -> None:
        self._setup = setup
        self._patience = patience
        self._child: Child | None = None
        self.exit_code: int | None = None

    async def run(self, event: ExecutionEvent) -> None:
        """Run it to its end, or stop it when the event is set; the event is set afterwards.

        Raises:
            Exception: what the algorithm raised: of a class of that name, caused by its traceback.
            RuntimeError: the process died.
        """
        stopping = asyncio.ensure_future(event.wait_async())
        try:
            self._child = child = await Child.start("algorithm", _ENTRY)
            child.send(self._setup)
            listening = asyncio.ensure_future(_listen(child))
            try:
                await asyncio.wait({listening, stopping}, return_when=asyncio.FIRST_COMPLETED)
                stopped = not listening.done()
            finally:
                listening.cancel()
                self.exit_code = await stop(child, self._patience)
            if stopped:
                return
            listening.result()
            if self.exit_code != 0:
                raise RuntimeError(f"the algorithm's process {describe_exit(self.exit_code)}")
        finally:
            stopping.cancel()
            event.set()

    def kill(self) -> None:
        """End it at once, from any thread."""
        if self._child is not None:
            self._child.end(0)


async def _listen(child: Child) -> None:
    """Return when it has ended.

    Raises:
        Exception: the algorithm failed, or could not be loaded.
    """
    with contextlib.suppress(EOFError):
        while True:
            _, failure = await child.receive()
            raise failure.as_exception()
