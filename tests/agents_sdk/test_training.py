"""Every example trains two steps on a tiny model that calls the calculator; docs/your-agent.md with real LangChain."""

from __future__ import annotations

import importlib

import mcp.client.stdio  # noqa: F401  # keeps the standard error of its import, which must not be that of one test
import pytest

from pages.conftest import here, small_cache
from pages.test_trained_agents import follow_langchain

from .training import check_training

__all__ = ["here", "small_cache"]

EXAMPLES = {
    "openai": ("train_openai", ()),
    "openai-agents on responses": ("train_openai_agents", ("--api", "responses")),
    "openai-agents on chat": ("train_openai_agents", ("--api", "chat")),
    "langchain": ("train_langchain", ()),
    "langgraph": ("train_langgraph", ()),
    "autogen": ("train_autogen", ()),
    "agent-framework on responses": ("train_agent_framework", ("--api", "responses")),
    "agent-framework on chat": ("train_agent_framework", ("--api", "chat")),
    "smolagents": ("train_smolagents", ()),
    "mcp": ("train_mcp", ()),
    "mcp with openai-agents": ("train_mcp_openai_agents", ()),
}
WORDS_ITS_HISTORY_ANEW = ("smolagents",)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_trains_two_steps(name, calling_folder, tasks_file, tmp_path, monkeypatch, capsys):
    module, options = EXAMPLES[name]
    example = importlib.import_module(module)
    extends = name not in WORDS_ITS_HISTORY_ANEW
    check_training(example, options, calling_folder, tasks_file, tmp_path / "run", monkeypatch, extends=extends)
    assert "evaluation: after RL: 2 done in" in capsys.readouterr().err


def test_the_langchain_tutorial_leads_to_an_agent_that_is_used(here):
    follow_langchain(here)
