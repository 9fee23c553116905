"""What serves and records the SDKs knows none of them."""

from __future__ import annotations

import re
from pathlib import Path

import mini_agentic_rl

SDKS = re.compile(
    r"lang(?:chain|graph)|autogen|smolagents|crewai|agent[-_ .]framework|(?:openai|sdk)[-_ .]agents|agents[-_ .]sdk|"
    r"user[-_]agent",
    re.IGNORECASE,
)


def test_no_sdk_is_named_where_requests_are_served_and_recorded():
    package = Path(mini_agentic_rl.__file__).parent
    files = [path for room in ("gateway", "tokens", "policy") for path in (package / room).rglob("*.py")]
    assert len(files) > 20
    assert {path.name: found for path in files if (found := SDKS.findall(path.read_text(encoding="utf-8")))} == {}
