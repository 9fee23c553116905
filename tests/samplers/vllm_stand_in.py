"""Stand in for `vllm serve`: the command line that the pool starts vLLM with, answered by `VllmWireServer`.

`stand_in(folder)` writes the program that is given as `vllm_python`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from pathlib import Path

_TESTS = Path(__file__).parents[1]


def stand_in(folder: Path) -> Path:
    """Write the program, which is called as a Python is that has vLLM, and return its path."""
    import mini_agentic_rl

    source = Path(mini_agentic_rl.__file__).parents[1]
    program = folder / "python"
    command = shlex.join([sys.executable, __file__])
    program.write_text(
        f'#!/bin/sh\nexport PYTHONPATH={shlex.quote(f"{source}:{_TESTS}")}\nshift 2\nexec {command} "$@"\n'
    )
    program.chmod(0o755)
    return program


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("serve")
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    given, _ = parser.parse_known_args()
    from samplers.vllm_wire import VllmWireServer

    VllmWireServer(given.model, host=given.host, port=given.port, api_key=os.environ.get("VLLM_API_KEY"))
    signal.pause()


if __name__ == "__main__":
    main()
