"""docs/your-agent.md: followed where LangChain is installed, which `make test-agents` sees to."""

from __future__ import annotations

import json

import pytest

from pages.shell import free_port, shell_line
from pages.snippets import python_block

PAGE = "docs/your-agent.md"
AGENT = python_block(PAGE, "def make_agent(")
ROLLOUT = python_block(PAGE, "async def solve(")
TRIED = python_block(PAGE, "total_steps=0")
TRAINED = python_block(PAGE, 'output_dir="outputs/langchain"')
USED = python_block(PAGE, "agent.invoke(")


def follow(folder) -> None:
    """Follow the page at the size of a test, in the working directory `folder`."""
    names = AGENT.run().names
    names |= ROLLOUT.run(given=names).names
    few = {"max_new_tokens=64": "max_new_tokens=6"}
    names |= TRIED.run(few | {"held_out[:4]": "held_out[:1]"}, given=names).names
    sizes = {"examples=32": "examples=2", "total_steps=15": "total_steps=1, tasks_per_step=1, samples_per_prompt=2"}
    names |= TRAINED.run(
        few | sizes | {"eval_size=100": "eval_size=2", "n_runners=64": "n_runners=4"}, given=names
    ).names
    summary = json.loads((folder / "outputs/langchain/summary.json").read_text())
    assert [row["name"] for row in summary["accuracy"]] == ["before", "after SFT", "after RL"]
    port, printed = free_port(), []

    def read() -> None:
        address = {"localhost:8000": f"127.0.0.1:{port}", "max_tokens=64": "max_tokens=4"}
        printed.append(USED.run(address, given=names).printed)

    shell_line(PAGE, "serve --adapter").serve(read, port=port)
    assert printed


def test_a_langchain_agent_is_tried_trained_and_used(here):
    pytest.importorskip("langchain_openai", reason="LangChain is not installed: its tutorial is left to test-agents")
    follow(here)
