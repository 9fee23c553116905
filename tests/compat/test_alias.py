"""Programs written for other packages, run under their own import names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import multiprocessing, subprocess, sys
import agentlightning as agl
import agentlightning.types, agent_framework_lab_lightning
from agentlightning.store.memory import InMemoryLightningStore
from hello_agents.rl import TrainingConfig
import mini_agentic_rl

assert agl is agent_framework_lab_lightning is mini_agentic_rl
assert InMemoryLightningStore is mini_agentic_rl.InMemoryLightningStore
assert agl.types.Rollout is sys.modules["mini_agentic_rl.types"].Rollout

assert agl.emitter.emit_reward is agl.emit_reward
assert agl.env_var.LightningEnvVar is agl.LightningEnvVar
assert agl.llm_proxy.__name__ == "mini_agentic_rl.gateway.proxy"
assert (agl.runner.LitAgentRunner.__name__, agl.reward.__name__) == ("LitAgentRunner", "reward")
assert not hasattr(agl, "no_such")

def there(name):
    return agl.__name__

if __name__ == "__main__":
    print(sys.argv[1:])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(*pool.map(there, ["worker"]))
    subprocess.run([sys.executable, "-c", "import agentlightning.reward, hello_agents.rl; print('child')"], check=True)
"""


def python(*arguments, cwd):
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def test_a_program_runs_under_the_names_of_other_packages_and_so_do_the_processes_that_it_starts(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    code, lines, errors = python("-m", "mini_agentic_rl.compat", "run", "program.py", "--epochs", "2", cwd=tmp_path)
    assert (code, lines) == (0, ["['--epochs', '2']", "mini_agentic_rl", "child"]), errors


def test_a_module_runs_under_the_names_of_other_packages(tmp_path):
    (tmp_path / "program.py").write_text("import sys, agentlightning as a; print(a.__name__, sys.argv[1:])")
    code, lines, errors = python("-m", "mini_agentic_rl.compat", "run", "-m", "program", "--fast", cwd=tmp_path)
    assert (code, lines) == (0, ["mini_agentic_rl ['--fast']"]), errors


def test_no_alias_is_there_by_default(tmp_path):
    program = "import importlib.util as util, mini_agentic_rl; print(*map(util.find_spec, {names!r}))"
    names = ("agentlightning", "agent_framework_lab_lightning", "hello_agents")
    code, lines, errors = python("-c", program.format(names=names), cwd=tmp_path)
    assert (code, lines) == (0, ["None None None"]), errors


TRACES = """
import asyncio
from agentlightning import AgentOpsTracer, InMemoryLightningStore, LitAgentRunner, OtelTracer, emit_reward, rollout

async def by_hand(tracer):
    store = InMemoryLightningStore()
    started = await store.start_rollout(input="task")
    ids = {"rollout_id": started.rollout_id, "attempt_id": started.attempt.attempt_id}
    async with tracer.trace_context("run", store=store, **ids) as trace:
        with trace.start_as_current_span("outer"), trace.start_as_current_span("inner"):
            pass
        emit_reward(1.0)
    async with tracer.continue_trace():
        emit_reward(0.5)
    return [span.name for span in await store.query_spans(started.rollout_id)]

@rollout
def half(task: str) -> float:
    return 0.5

async def by_a_runner():
    runner, store = LitAgentRunner[str](OtelTracer()), InMemoryLightningStore()
    with runner.run_context(agent=half, store=store):
        done = await runner.step("task")
    return [span.name.replace(done.rollout_id, "rollout") for span in await store.query_spans(done.rollout_id)]

print(*asyncio.run(by_hand(OtelTracer())))
print(*asyncio.run(by_hand(AgentOpsTracer())))
print(*asyncio.run(by_a_runner()))
"""


def test_a_trace_that_is_opened_by_hand_holds_what_was_made_in_it(tmp_path):
    (tmp_path / "program.py").write_text(TRACES, encoding="utf-8")
    code, lines, errors = python("-m", "mini_agentic_rl.compat", "run", "program.py", cwd=tmp_path)
    reward = "agentlightning.annotation"
    assert code == 0, errors
    assert lines == [
        f"inner outer {reward} {reward}",
        f"inner outer {reward} run {reward}",  # the session
        f"{reward} rollout",
    ]


def test_a_real_package_that_is_imported_already_is_not_replaced(tmp_path):
    (tmp_path / "agentlightning.py").write_text("", encoding="utf-8")
    program = "import agentlightning, mini_agentic_rl.compat; mini_agentic_rl.compat.alias()"
    code, _, errors = python("-c", program, cwd=tmp_path)
    assert code != 0
    assert "UserError: agentlightning has been imported already, from" in errors


def test_a_real_package_that_is_only_installed_is_passed_over(tmp_path):
    (tmp_path / "agentlightning.py").write_text("raise RuntimeError", encoding="utf-8")
    program = "import mini_agentic_rl.compat as c; c.alias(); c.alias(); import agentlightning as a; print(a.__name__)"
    assert python("-c", program, cwd=tmp_path)[:2] == (0, ["mini_agentic_rl"])


def test_only_the_part_of_hello_agents_that_is_ours_is_replaced(tmp_path):
    package = Path(tmp_path, "hello_agents")
    package.mkdir()
    (package / "__init__.py").write_text("mine = 1", encoding="utf-8")
    (package / "tools.py").write_text("kept = 2", encoding="utf-8")
    (package / "rl.py").write_text("raise RuntimeError", encoding="utf-8")
    program = (
        "import mini_agentic_rl.compat as c; c.alias(); from hello_agents import mine; from hello_agents.tools import "
        "kept; from hello_agents.rl import GSM8KDataset as g; print(mine, kept, g.__module__)"
    )
    assert python("-c", program, cwd=tmp_path)[:2] == (0, ["1 2 mini_agentic_rl.integrations.hello_agents.datasets"])


def test_a_program_that_is_not_there_is_named(tmp_path):
    code, _, errors = python("-m", "mini_agentic_rl.compat", "run", "nothing.py", cwd=tmp_path)
    assert (code, "there is no file nothing.py" in errors) == (2, True)
