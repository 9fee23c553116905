"""The services of deploy/docker-compose.yaml, to be run as plain processes of this machine; our commands in deploy/.

What Docker would give them is put in its place: ports that are free for ports of their own, this machine for names of
services, folders for volumes. Commands, variables and health checks stay those of the file.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from mini_agentic_rl.cli import app
from mini_agentic_rl.commands.store_server import ServeStoreSettings
from mini_agentic_rl.execution import ClientServerExecutionStrategy
from processes import PythonProcess

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILE = DEPLOY / "docker-compose.yaml"
KUBERNETES = DEPLOY / "kubernetes"
DRAIN = ServeStoreSettings().drain_seconds
RUNNERS_END = ClientServerExecutionStrategy(role="runner").patience.total
_VARIABLE = re.compile(r"\$\{(\w+)(?::\?[^}]*)?\}")


@dataclass(frozen=True)
class Service:
    """One service of the file, or one replica of it."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    healthcheck: Sequence[str] | None
    after: Sequence[str]
    """Services that have to be healthy before."""

    def is_healthy(self) -> bool:
        """Run the health check of the file."""
        assert self.healthcheck is not None, f"{self.name} has none"
        kind, *words = self.healthcheck
        assert kind == "CMD"
        assert words[0] == "python"
        return subprocess.run([sys.executable, *words[1:]], capture_output=True, timeout=60).returncode == 0

    def wait_until_healthy(self, process: PythonProcess) -> None:
        """Wait until the health check succeeds.

        Raises:
            AssertionError: the process ended, or three minutes passed, before it did.
        """
        end = time.monotonic() + 180
        while not self.is_healthy():
            assert process.is_alive, process.stdout + process.stderr
            assert time.monotonic() < end, f"{self.name} was never healthy"
            time.sleep(0.2)


def document() -> dict[str, Any]:
    """Return the file as it is read."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text())
    return found


def services(
    variables: Mapping[str, str], ports: Mapping[str, Mapping[int, int]], paths: Mapping[str, Path]
) -> list[Service]:
    """Return the services of our image, replicas one by one, as processes of this machine.

    Args:
        variables: what a person exports before.
        ports: by service and port in the file, the port here.
        paths: by path in the containers, the path here.
    """
    found = []
    for name, given in document()["services"].items():
        if "build" not in given:
            continue

        def here(text: str) -> str:
            text = _VARIABLE.sub(lambda match: variables[match[1]], text)
            for service, mapped in ports.items():
                for port, free in mapped.items():
                    text = re.sub(rf"\b({service}|127\.0\.0\.1):{port}\b", f"127.0.0.1:{free}", text)
                    text = str(free) if text == str(port) else text
            for path, local in paths.items():
                text = text.replace(path, str(local)) if text.startswith(path) else text
            return text

        check = given.get("healthcheck", {}).get("test")
        service = Service(
            name,
            [here(word) for word in given["command"]],
            {key: "127.0.0.1" if value in ports else here(value) for key, value in given["environment"].items()},
            None if check is None else [here(word) for word in check],
            list(given.get("depends_on", {})),
        )
        found += [service] * given.get("deploy", {}).get("replicas", 1)
    return found


def parses(words: list[str]) -> None:
    """Read a command line of ours as the command does, without running it."""
    assert words[0] == "mini-agentic-rl"
    commands: Any = get_command(app).commands  # type: ignore[attr-defined]  # it is a group
    commands[words[1]].make_context(words[1], words[2:])


def grace(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])
