"""Ask for known vulnerabilities of all installed packages, and tell what could not be asked; a part of `audit.py`.

Run by the Python whose packages are meant. pip-audit asks a service on the network: each package by its public version
(2.6.0 for torch 2.6.0+cpu), and this package itself not at all, since no index has it. The service is asked about one
package first: where it does not answer, no others are sent.

The status is 0 if all were asked about and nothing is known, 1 if something is known, 3 if nothing is known of those
that were asked about and there are others.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

OURS = "mini-agentic-rl"
_NEEDED_BY_ALL = "pip"


def installed() -> dict[str, str]:
    """Return the public version of each installed package, without this one."""
    found = {one.metadata["Name"]: one.version.partition("+")[0] for one in distributions()}
    return {name: found[name] for name in sorted(found, key=str.lower) if name.lower() != OURS}


def ask(pip_audit: str, packages: Mapping[str, str], options: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Ask about packages: return a line for each vulnerability, and why each other package could not be asked about."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / "requirements.txt"
        wanted.write_text("".join(f"{name}=={version}\n" for name, version in packages.items()), encoding="utf-8")
        form = ["--format", "json", "--progress-spinner", "off", "--no-deps", "--disable-pip"]
        command = [pip_audit, *form, *options, "--requirement", str(wanted)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return [], dict.fromkeys(packages, f"{pip_audit} cannot be run: {error.strerror}; it is not installed here")
    try:
        rows = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        why = (done.stderr.strip() or f"pip-audit ended with status {done.returncode}").splitlines()[-1]
        return [], dict.fromkeys(packages, why)
    known = [
        f"{row['name']} {row['version']}: {one['id']}, mended in {', '.join(one['fix_versions']) or 'no version yet'}"
        for row in rows
        for one in row.get("vulns", ())
    ]
    asked = {_plain(row["name"]) for row in rows if "skip_reason" not in row}
    reasons = {_plain(row["name"]): row["skip_reason"] for row in rows if "skip_reason" in row}
    left = [name for name in packages if _plain(name) not in asked]
    return known, {name: reasons.get(_plain(name), "pip-audit does not say why") for name in left}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def main(pip_audit: str, *options: str) -> int:
    """Print what is known and what is not; return the exit status."""
    packages = installed()
    probe = {_NEEDED_BY_ALL: packages.get(_NEEDED_BY_ALL, "25.0")}
    known, left = ask(pip_audit, probe, options)
    if left:
        why = left[_NEEDED_BY_ALL]
        print(f"vulnerabilities: NOT CHECKED, none of {len(packages)} packages; nothing answers ({why})")
        return 3
    known, left = ask(pip_audit, packages, options)
    print("\n".join([*known, f"vulnerabilities: {len(packages) - len(left)} packages asked about, {len(known)} known"]))
    if left:
        print(f"NOT CHECKED, {len(left)} packages:")
        print("\n".join(f"  {name} {packages[name]}: {why}" for name, why in left.items()))
    return 1 if known else 3 if left else 0
