"""Commands and times of this package, as the files of deploy/ name them."""

from __future__ import annotations

from typing import Any

from typer.main import get_command

from mini_agentic_rl.cli import app
from mini_agentic_rl.commands.store_server import ServeStoreSettings
from mini_agentic_rl.execution import ClientServerExecutionStrategy

from .compose import ROOT

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
DRAIN = ServeStoreSettings().drain_seconds
RUNNERS_END = ClientServerExecutionStrategy(role="runner").patience.total


def parses(words: list[str]) -> None:
    """Read a command line of ours as the command does, without running it."""
    assert words[0] == "mini-agentic-rl"
    commands: Any = get_command(app).commands  # type: ignore[attr-defined]  # it is a group
    commands[words[1]].make_context(words[1], words[2:])


def grace(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])
