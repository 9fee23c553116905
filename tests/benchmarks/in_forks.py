"""Run a benchmark that measures each side in a process of its own; here each is forked from this one, which has
imported the engine: `python in_forks.py BENCHMARK options...`."""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def measure(python: str, script: str, arguments: list[str]) -> dict[str, Any]:
    """Do as `grpo_step.measure` does."""
    with tempfile.TemporaryFile("w+") as told:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                os.dup2(told.fileno(), 1)
                sys.argv = [script, *arguments]
                runpy.run_path(str(BENCHMARKS / script), run_name="__main__")
                sys.stdout.flush()
                status = 0
            except BaseException:
                traceback.print_exc()
            os._exit(status)
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"{script} failed"
        told.seek(0)
        result: dict[str, Any] = json.loads(told.read().splitlines()[-1])
        return result


def main() -> None:
    """Run the benchmark of the command line."""
    del sys.argv[0]
    sys.path.insert(0, str(BENCHMARKS))
    import grpo_step

    grpo_step.measure = measure
    benchmark = BENCHMARKS / sys.argv[0]
    if benchmark.stem == "grpo_step":
        grpo_step.main()
    else:
        runpy.run_path(str(benchmark), run_name="__main__")


if __name__ == "__main__":
    main()
