"""What the pages say of traces: `init()` is for the whole process, and a trainer exports to an address."""

from __future__ import annotations

import subprocess
import sys

from integrations.otlp.collector import Collector, facts
from pages.snippets import python_block

INIT = python_block("docs/scaling.md", "init()")
EXPORT = python_block("docs/traces.md", "Trainer(otlp=")

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


def test_a_trainer_sends_a_trace_of_each_attempt(here):
    with Collector() as collector:
        EXPORT.run({"http://localhost:6006": collector.url})
    roots = [span for span in collector.spans if not span.parent_span_id]
    assert [root.name for root in roots] == ["invoke_agent guess"] * 2
    assert sorted(facts(root)["agentlightning.reward"] for root in roots) == [0.0, 1.0]
