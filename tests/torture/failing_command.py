"""Run a command of the package on a disk that fails; print how many operations there were.

python failing_command.py FOLDER AT ERRNO STAYS COMMAND...
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from torture.failing_disk import failing


def main() -> None:
    """Run it; its status is that of the process."""
    folder, at, number, stays, *command = sys.argv[1:]
    sys.argv[1:] = command
    with failing(Path(folder), int(at), int(number), stays=stays == "True") as operations:
        try:
            runpy.run_module("mini_agentic_rl", run_name="__main__", alter_sys=True)
        finally:
            print("operations:", operations.count)


if __name__ == "__main__":
    main()
