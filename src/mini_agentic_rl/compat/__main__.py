"""`python -m mini_agentic_rl.compat run script.py …`: run a program under the import names of other packages."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from ..errors import UserError
from .finder import alias
from .names import ALIASES

_USER_ERROR = 2


def main(arguments: list[str]) -> None:
    """Read the command line and run the program in this process, as `python script.py …` and `python -m module …` do.

    Raises:
        SystemExit: the command line is wrong, or the program ended with an exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m mini_agentic_rl.compat", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="run")
    run = commands.add_parser(
        "run",
        usage="%(prog)s (script.py | -m module) [arguments]",
        help=f"run a program in which {', '.join(ALIASES)} are this package",
    )
    run.add_argument("-m", dest="module", action="store_true", help="the program is a module and not a file")
    run.add_argument("program", help="a script, or the name of a module")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program gets")
    given = parser.parse_args(arguments)
    if not given.module and not Path(given.program).exists():
        parser.error(f"there is no file {given.program}")
    try:
        alias()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(_USER_ERROR)
    sys.argv = [given.program, *given.arguments]
    if given.module:
        sys.path[0] = ""
        runpy.run_module(given.program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(given.program).resolve().parent)
        runpy.run_path(given.program, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
