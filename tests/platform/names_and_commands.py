"""Import every module and every public name, show the help of every command, and run `doctor`."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import walk_packages

from typer.main import get_command
from typer.testing import CliRunner

import mini_agentic_rl
from mini_agentic_rl.errors import MissingPackageError
from mini_agentic_rl.files import atomic

POSIX_PROGRAMS = "mini_agentic_rl.recipes.harness.programs"
"""Run by an interpreter of their own, where commands can be agents: on Linux and macOS."""


def main() -> None:
    assert not eval("hasattr(os, 'fork')", vars(atomic)), "the simulation is off"
    failures, names = [], 0

    def failed(name: str) -> None:
        if not isinstance(sys.exc_info()[1], MissingPackageError):
            failures.append((name, repr(sys.exc_info()[1])))

    for info in walk_packages(mini_agentic_rl.__path__, "mini_agentic_rl.", onerror=failed):
        if info.name.endswith("__main__") or info.name.startswith(POSIX_PROGRAMS):
            continue
        try:
            module = import_module(info.name)
            for name in getattr(module, "__all__", ()):
                getattr(module, name)
                names += 1
        except Exception:
            failed(info.name)
    assert names > 800
    app = mini_agentic_rl.cli.app
    pages = 0
    for command in ("", *get_command(app).commands):
        result = CliRunner().invoke(app, [*command.split(), "--help"], env={"TERM": "dumb"})
        pages += 1
        if result.exit_code != 0:
            failures.append((command, result.output))
    assert pages > 20
    doctor = CliRunner().invoke(app, ["doctor", "--no-speed-test"], env={"COLUMNS": "300", "TERM": "dumb"})
    if "checked 20 times a second" not in doctor.output:
        failures.append(("doctor", doctor.output))
    assert not failures, failures


if __name__ == "__main__":
    main()
