"""docs/your-agent.md, followed with the real LangChain."""

from __future__ import annotations

from pages.conftest import here, small_cache
from pages.test_tutorial_langchain import follow

__all__ = ["here", "small_cache"]


def test_the_langchain_tutorial_leads_to_an_agent_that_is_used(here):
    follow(here)
