"""Check the licences of all installed packages against those that Apache-2.0 may stand beside; a part of `audit.py`.

The names are SPDX's. pyproject.toml holds the lists, under `tool.licences`:

    allowed     licences that let the package be used with and beside this one, whatever it is used for
    means       how packages without an SPDX expression write one of them
    excepted    packages with another licence, each with the reason why it may be there all the same
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:
    import tomli as tomllib

_INNERMOST = re.compile(r"\(([^()]*)\)")


def licence_of(package: Distribution) -> str:
    """Return the licence that a package says it has, "" if it says none; several classifiers are all of them."""
    told = package.metadata
    expression = told.get("License-Expression")
    if expression:
        return str(expression)
    classifiers = [line.split("::")[-1].strip() for line in told.get_all("Classifier") or [] if line[:7] == "License"]
    named = [one for one in classifiers if one not in ("OSI Approved", "DFSG approved")]
    return " AND ".join(named) or str(told.get("License") or "").strip().partition("\n")[0]


def holds(licence: str, lists: Mapping[str, Any]) -> bool:
    """Return True if an SPDX expression, or another name of a licence, allows what Apache-2.0 needs."""
    if licence in lists["means"]:
        return True
    while inner := _INNERMOST.search(licence):
        licence = (
            licence[: inner.start()] + ("ALLOWED" if holds(inner[1], lists) else "REFUSED") + licence[inner.end() :]
        )
    known = {"ALLOWED", *lists["allowed"], *lists["means"]}
    return any(all(one.strip() in known for one in part.split(" AND ")) for part in licence.split(" OR "))


def complaints(lists: Mapping[str, Any]) -> list[str]:
    """Return a line for each installed package whose licence is not allowed, and each exception that is not needed."""
    told = {package.metadata["Name"].lower(): licence_of(package) for package in distributions()}
    refused = {name for name, licence in told.items() if not holds(licence, lists)}
    excepted = {name.lower() for name in lists["excepted"]}
    return [
        *(f"{name}: {told[name] or 'says no licence'}" for name in sorted(refused - excepted)),
        *(f"{name} needs no exception" for name in sorted(excepted & (told.keys() - refused))),
    ]


def main() -> int:
    """Print what is wrong; return the exit status."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))
    lists = project["tool"]["licences"]
    found = complaints(lists)
    names = {package.metadata["Name"].lower() for package in distributions()}
    excepted = len(names & {name.lower() for name in lists["excepted"]})
    print("\n".join(found) or f"licences: {len(names)} packages checked, all allowed ({excepted} as exceptions)")
    return 1 if found else 0
