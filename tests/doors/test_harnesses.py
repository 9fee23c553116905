"""Programs that others wrote, unmodified, as agents: each trained for two steps on a tiny model, without a network."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sqlite3
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mini_agentic_rl.cli import app

from .bash_model import save_bash_model

EXAMPLES = Path(__file__).parents[2] / "examples" / "harness"
MINI = os.environ.get("DOORS_MINI", "")
"""The command `mini` of mini-swe-agent."""
CLAUDE = os.environ.get("DOORS_CLAUDE", "")
"""The command `claude` of Claude Code."""
SMALL = ("--tasks-per-step", "1", "--eval-size", "1", "--cache-mib", "256", "--max-new-tokens", "64", "--json")


def tasks(folder: Path) -> Path:
    """The example's task, to train on and to measure, with the mended file beside the one to mend."""
    source = EXAMPLES / "tasks" / "median"
    for split in ("train", "test"):
        copy = shutil.copytree(source, folder / split / "median")
        good = (copy / "workspace" / "stats.py").read_text()
        mended = "    middle = len(ordered) // 2\n    return (ordered[middle] + ordered[-middle - 1]) / 2\n"
        good = good.replace("    return ordered[len(ordered) // 2]\n", mended)
        (copy / "workspace" / "fixed.py").write_text(good)
    return folder


def trained(folder: Path, model: str, *words: str) -> dict:
    told = CliRunner().invoke(
        app,
        [
            *("train", "--model", model, "--dataset", str(tasks(folder / "tasks")), *words, *SMALL),
            *("--total-steps", "2", "--samples-per-prompt", "4", "--output-dir", str(folder / "run")),
            *("--n-runners", "2", "--sandbox-memory-mib", "4096"),
        ],
    )
    assert told.exit_code == 0, told.output
    return json.loads(told.stdout)


def rewards(folder: Path) -> set[float]:
    """The rewards of all rollouts of a run."""
    with sqlite3.connect(folder / "run" / "rollouts.db") as store:
        kept = "\n".join(store.iterdump())
    return {value for value in (0.0, 0.5, 1.0) if f'"agentlightning.reward.0.value": {value}' in kept}


@pytest.mark.skipif(not MINI, reason="DOORS_MINI names no mini-swe-agent: it is left unchecked")
def test_mini_swe_agent_is_trained_unmodified(tmp_path):
    config = shlex.quote(str(EXAMPLES / "mini.yaml"))
    summary = trained(
        tmp_path,
        save_bash_model(tmp_path / "model", "bash"),
        *("--agent-command", f"{MINI} -y --exit-immediately -c {config} -m openai/{{model}} -t {{prompt}} -o t.json"),
        *("--agent-env", "MSWEA_CONFIGURED=true", "--agent-env", "LITELLM_LOCAL_MODEL_COST_MAP=True"),
    )
    assert (summary["steps"], summary["untrained"]) == (2, {})
    assert 1.0 in rewards(tmp_path)
    assert rewards(tmp_path) & {0.0, 0.5}


@pytest.mark.skipif(not CLAUDE, reason="DOORS_CLAUDE names no Claude Code: it is left unchecked")
def test_claude_code_is_trained_unmodified(tmp_path):
    summary = trained(
        tmp_path,
        save_bash_model(tmp_path / "model", "Bash"),
        *("--agent-env", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "--agent-env", "DISABLE_TELEMETRY=1"),
        "--agent-command",
        f"{CLAUDE} -p {{prompt}} --model {{model}} --tools Bash --allowedTools Bash --max-turns 4",
    )
    assert (summary["steps"], summary["untrained"]) == (2, {})
    assert 1.0 in rewards(tmp_path)
    assert rewards(tmp_path) & {0.0, 0.5}
