"""Parents are killed while their children compute: nothing that this package has started outlives them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path

import psutil
import pytest

from processes import all_have_ended

from .conftest import Attack

SPINNING = "import sys; open(sys.argv[1], 'w').close()\nwhile True: pass"
"""A program that says by a file that it has begun, and computes for ever."""

# A catastrophic pattern holds the interpreter's lock: nothing in the agent's process can look up.
HOPELESS = f"""
import re, subprocess, sys
from mini_agentic_rl import LitAgent
class Hopeless(LitAgent):
    def rollout(self, task, resources, rollout):
        subprocess.Popen([sys.executable, "-c", {SPINNING!r}, "begun"])
        re.match('(a+)+$', 'a' * 60 + 'b')
"""
PROGRAMS = {
    "symbolic comparison": """
from mini_agentic_rl.rewards import math as symbolic
symbolic.TIME_LIMIT = 600.0
symbolic.equivalent("9^{9^{9^{9}}} + x", "x", lambda a, b: False)
""",
    "agent in a process of its own": """
import asyncio, hopeless
from mini_agentic_rl import InMemoryLightningStore, LitAgentRunner, OtelTracer, PromptTemplate
async def main():
    store = InMemoryLightningStore()
    await store.add_resources({"prompt": PromptTemplate(template="", engine="f-string")})
    await store.enqueue_rollout("task")
    runner = LitAgentRunner(OtelTracer(), isolation="process")
    with runner.run_context(agent=hopeless.Hopeless(), store=store):
        await runner.iter()
asyncio.run(main())
""",
    "converter to GGUF": f"""
import sys
from pathlib import Path
from mini_agentic_rl.post_training.export.formats import convert
convert([sys.executable, "-c", {SPINNING!r}, "begun"], Path("m"), Path("."), "n", "f16")
""",
    "sql query": """
import sqlite3
from mini_agentic_rl.recipes.sql.tool import QueryLimits, SqlDatabase
with sqlite3.connect("some.db") as made:
    made.execute("CREATE TABLE IF NOT EXISTS t (x)")
    made.executemany("INSERT INTO t VALUES (?)", [(number,) for number in range(1000)])
endless = "SELECT sum(a.x * b.x - c.x * d.x) FROM t a, t b, t c, t d"
SqlDatabase("some.db", QueryLimits(timeout_seconds=600)).query(endless)
""",
    "conversion of the embedded model": f"""
import sys
from mini_agentic_rl.processes import run_child
run_child([sys.executable, "-c", {SPINNING!r}, "begun"])
""",
    "runners of a client and server run": """
import hopeless
from mini_agentic_rl import PromptTemplate, Trainer
from mini_agentic_rl.algorithm import Baseline
from mini_agentic_rl.execution import ClientServerExecutionStrategy
resources = {"prompt": PromptTemplate(template="", engine="f-string")}
strategy = ClientServerExecutionStrategy(server_port=0)
trainer = Trainer(algorithm=Baseline(), n_runners=2, strategy=strategy, initial_resources=resources)
trainer.fit(hopeless.Hopeless(), train_dataset=["a", "b"])
""",
}


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is of Unix")
def test_a_parent_is_killed_while_its_child_computes(attack: Attack, tmp_path: Path) -> None:
    (tmp_path / "hopeless.py").write_text(HOPELESS)
    for number, name in enumerate(islice(cycle(PROGRAMS), attack.times(30))):
        with attack.attempt((name, number)):
            _kill_the_parent(PROGRAMS[name], tmp_path)


def _kill_the_parent(program: str, folder: Path) -> None:
    (folder / "begun").unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    with (folder / "said").open("w+b") as said:
        parent = subprocess.Popen(
            [sys.executable, "-c", program], cwd=folder, env=environment, stdout=said, stderr=said
        )
        try:
            _wait_until_it_computes(parent, folder)
            time.sleep(random.random() / 5)
        finally:
            descendants = [] if parent.returncode else psutil.Process(parent.pid).children(recursive=True)
            parent.kill()
            parent.wait()
    assert descendants
    assert all_have_ended(descendants, 60), [one for one in descendants if one.is_running()]


def _wait_until_it_computes(parent: subprocess.Popen[bytes], folder: Path) -> None:
    """Wait until a process below the parent says that it has begun, or has used 3 seconds of processor time."""
    end = time.monotonic() + 60
    while time.monotonic() < end and parent.poll() is None:
        if (folder / "begun").exists():
            return
        for one in psutil.Process(parent.pid).children(recursive=True):
            try:
                if sum(one.cpu_times()[:2]) > 3.0:
                    return
            except psutil.Error:
                continue
        time.sleep(0.05)
    raise AssertionError(f"no child came to compute: {(folder / 'said').read_text()[-1000:]}")
