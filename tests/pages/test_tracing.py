"""docs/framework.md: what `init()` does for the process that calls it, which is for good, and so one of its own."""

from __future__ import annotations

import subprocess
import sys

from pages.snippets import python_block

INIT = python_block("docs/framework.md", "init()")

LOOK = """
from opentelemetry import trace
first = trace.get_tracer_provider()
init()
print(type(first).__module__, trace.get_tracer_provider() is first)
"""


def test_a_process_is_traced_after_one_call_and_a_second_changes_nothing(here):
    done = subprocess.run([sys.executable, "-c", INIT.text + LOOK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["opentelemetry.sdk.trace", "True"]
    assert "Traceback" not in done.stderr
