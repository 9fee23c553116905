"""Resolve the requirements as wheels for other operating systems, and say which have none. Nothing is installed.

    python dev/platform_wheels.py [PLATFORM ...]

pip takes the tags of wheels from `--platform`, but evaluates environment markers (`sys_platform == "win32"`) for the
interpreter that runs it. Here they are evaluated for the platform that is asked for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "windows": (["win_amd64"], {"sys_platform": "win32", "os_name": "nt", "platform_system": "Windows"}, "AMD64"),
    "macos": (
        [f"macosx_{version}_0_arm64" for version in range(11, 16)],
        {"sys_platform": "darwin", "os_name": "posix", "platform_system": "Darwin"},
        "arm64",
    ),
    "linux-arm": (
        [*(f"manylinux_2_{minor}_aarch64" for minor in range(17, 36)), "manylinux2014_aarch64"],
        {"sys_platform": "linux", "os_name": "posix", "platform_system": "Linux"},
        "aarch64",
    ),
}
PIP = """
import json, sys
from pip._internal.cli.main import main
from pip._vendor.packaging import markers
environment = json.loads(sys.argv[1])
original = markers.default_environment
markers.default_environment = lambda: {**original(), **environment}
sys.exit(main(sys.argv[2:]))
"""


def check(requirements: list[str], name: str, python: str) -> str:
    """Return why the requirements cannot be had as wheels; empty where they can."""
    tags, markers, machine = PLATFORMS[name]
    version = {"python_version": python, "python_full_version": f"{python}.0"}
    environment = {**markers, **version, "platform_machine": machine}
    with tempfile.TemporaryDirectory() as target:
        done = subprocess.run(
            [
                *(sys.executable, "-c", PIP, json.dumps(environment)),
                *("--isolated", "install", "--dry-run", "--quiet", "--ignore-installed", "--only-binary", ":all:"),
                *("--target", target, "--python-version", python, "--implementation", "cp"),
                *(word for tag in tags for word in ("--platform", tag)),
                *requirements,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    return "" if done.returncode == 0 else done.stderr.strip() or "pip failed"


def main() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    failed = False
    for name in sys.argv[1:] or PLATFORMS:
        for python in PYTHONS:
            reason = check(project["dependencies"], name, python)
            failed = failed or bool(reason)
            print(f"{name} Python {python}: {reason or 'every requirement has a wheel'}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
