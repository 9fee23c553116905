"""The process of a training: reads its job, trains, and writes what came of it into the output folder.

    python -m mini_agentic_rl.integrations.hello_agents.training_tool.worker FOLDER     (standard input: the job)

SIGINT and SIGTERM end it as Ctrl-C ends a command: with a checkpoint that `resume` goes on from.
"""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path

import cloudpickle

from ....errors import UserError
from ....logging import setup_logging
from ....metrics import shared_console
from ....processes import stops_cleanly
from .parameters import told
from .training import Job, run_recorded

logger = logging.getLogger(__name__)

FAILED, STOPPED = 1, 130


def main() -> int:
    """Train, and return the exit code: 0 finished, 1 failed, 130 stopped, 143 stopped by SIGTERM."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have had it ignored for what it starts
    job: Job = cloudpickle.load(sys.stdin.buffer)
    setup_logging("INFO", console=shared_console())
    try:
        with stops_cleanly():
            run_recorded(job, Path(sys.argv[-1]))
    except KeyboardInterrupt:
        logger.info("stopped")
        return STOPPED
    except UserError as error:
        logger.error("%s", told(error))
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
