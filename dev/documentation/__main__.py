"""`python -m documentation FOLDER` gathers the pages of the site; `python -m documentation llms` writes llms.txt."""

from __future__ import annotations

import sys
from pathlib import Path

from .gather import gather
from .llms import FILE, llms_text


def main() -> None:
    """Do what the only argument says."""
    (argument,) = sys.argv[1:]
    if argument == "llms":
        FILE.write_text(llms_text(), encoding="utf-8")
    else:
        gather(Path(argument))


if __name__ == "__main__":
    main()
