"""Programs that others wrote, unmodified, as agents: each trained for two steps on a tiny model, without a network."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agents_sdk import calling_model
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.cli import app
from tiny import tiny_model

EXAMPLES = Path(__file__).parents[2] / "examples" / "harness"
MINI = os.environ.get("REAL_MINI", "")
"""The command `mini` of mini-swe-agent."""
CLAUDE = os.environ.get("REAL_CLAUDE", "")
"""The command `claude` of Claude Code."""
SMALL = ("--tasks-per-step", "1", "--eval-size", "1", "--cache-mib", "256", "--max-new-tokens", "64", "--json")


GOOD, USELESS, FINISH = "cp fixed.py stats.py", "cp stats.py old.py", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
CONTEXT = 16384


def _call(tool: str, command: str) -> str:
    return f'<tool_call>\n{{"name": "{tool}", "arguments": {json.dumps({"command": command})}}}\n</tool_call>'


def save_bash_model(folder: Path, tool: str) -> str:
    """Save a tiny model that has learnt to mend a file by a tool that runs commands, every second time; its folder.

    At first it calls the tool with one of two commands at even odds: one puts `fixed.py` in the place of `stats.py`,
    the other does nothing of use. After a tool's result it ends: mini-swe-agent by a command, Claude Code by a word.
    """
    opening = "<|im_end|>\n<|im_start|>assistant\n"
    finish = _call(tool, FINISH) if tool == "bash" else "Done."
    said = [(opening, _call(tool, GOOD)), (opening, _call(tool, USELESS))]
    said += [(f"</tool_response>{opening}", finish)] * 2
    tokenizer = small_tokenizer(CHATML_TOOLS)
    model = tiny_model(len(tokenizer), width=96)
    model.config.max_position_embeddings = CONTEXT
    calling_model.imitate(model, tokenizer, said, steps=600)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def tasks(folder: Path) -> Path:
    """The example's task, to train on and to measure, with the mended file beside the one to mend."""
    source = EXAMPLES / "tasks" / "median"
    for split in ("train", "test"):
        copy = shutil.copytree(source, folder / split / "median")
        good = (copy / "workspace" / "stats.py").read_text()
        mended = "    middle = len(ordered) // 2\n    return (ordered[middle] + ordered[-middle - 1]) / 2\n"
        good = good.replace("    return ordered[len(ordered) // 2]\n", mended)
        (copy / "workspace" / "fixed.py").write_text(good)
        (copy / "task.toml").write_text("[agent]\ntimeout_sec = 900\n[verifier]\ntimeout_sec = 300\n")
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


def steps(folder: Path) -> list[dict]:
    """The numbers of the steps of a run."""
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "reward/mean" in line]


def earned(folder: Path) -> None:
    """See that every rollout was judged: a command of use earns 1, anything else half of that."""
    assert len(steps(folder)) == 2
    for step in steps(folder):
        assert 0.5 <= step["reward/mean"] <= 1.0
        assert step["reward/tests_passed/mean"] == 1.0


@pytest.mark.skipif(not Path(MINI).is_file(), reason="REAL_MINI names no mini-swe-agent: it is left unchecked")
def test_mini_swe_agent_is_trained_unmodified(tmp_path):
    config = shlex.quote(str(EXAMPLES / "mini.yaml"))
    summary = trained(
        tmp_path,
        save_bash_model(tmp_path / "model", "bash"),
        *("--agent-command", f"{MINI} -y --exit-immediately -c {config} -m openai/{{model}} -t {{prompt}} -o t.json"),
        *("--agent-env", "MSWEA_CONFIGURED=true", "--agent-env", "LITELLM_LOCAL_MODEL_COST_MAP=True"),
    )
    assert (summary["steps"], summary["untrained"]) == (2, {})
    earned(tmp_path)
    assert all(step["rollout/tool_calls"] >= 1 for step in steps(tmp_path))


@pytest.mark.skipif(not Path(CLAUDE).is_file(), reason="REAL_CLAUDE names no Claude Code: it is left unchecked")
def test_claude_code_is_trained_unmodified(tmp_path):
    summary = trained(
        tmp_path,
        save_bash_model(tmp_path / "model", "Bash"),
        *("--agent-env", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "--agent-env", "DISABLE_TELEMETRY=1"),
        "--agent-command",
        f"{CLAUDE} -p {{prompt}} --model {{model}} --tools Bash --allowedTools Bash --max-turns 4 "
        "--system-prompt 'You mend programs.'",
    )
    assert (summary["steps"], summary["untrained"]) == (2, {})
    earned(tmp_path)
