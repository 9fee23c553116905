"""What needs a package that is not installed says so in one line, with the command that installs it."""

from __future__ import annotations

import sys

import pytest

from mini_agentic_rl.errors import MissingPackageError, UserError

CASES: dict[str, tuple[str, ...]] = {
    "quant": (
        "bitsandbytes bitsandbytes.optim",
        "import torch; from mini_agentic_rl.policy import quantization_config; "
        "quantization_config('4bit', torch.float32)",
    ),
    "quant, optimizer": (
        "bitsandbytes bitsandbytes.optim",
        "import torch; from mini_agentic_rl.policy.learner import LearnerSettings, _make_optimizer; "
        "_make_optimizer([torch.zeros(1)], LearnerSettings(optimizer='adamw_8bit'), torch.device('cpu'))",
    ),
    "services, postgres": (
        "psycopg",
        "from mini_agentic_rl.store import open_store; open_store('postgresql://nobody@127.0.0.1:1/none')",
        "store.sql.backends",
    ),
    "services, mongo": (
        "pymongo",
        "from mini_agentic_rl.store import open_store; open_store('mongodb://127.0.0.1:1/none')",
        "integrations.mongo.connection",
    ),
    "services, otlp": (
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "from mini_agentic_rl.tracer.otel import _sender; _sender('http://127.0.0.1:1', None)",
    ),
    "services, export": (
        "opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "from mini_agentic_rl import InMemoryLightningStore\n"
        "from mini_agentic_rl.trainer import TraceExportSettings, exported\n"
        "with exported(InMemoryLightningStore(), TraceExportSettings(otlp='http://localhost:6006')): pass",
    ),
    "ray": (
        "ray",
        "from mini_agentic_rl.execution import RayExecutionStrategy\n"
        "from mini_agentic_rl.store import InMemoryLightningStore\n"
        "async def nothing(*given): ...\n"
        "RayExecutionStrategy().execute(nothing, nothing, InMemoryLightningStore())",
    ),
    "recipes, reasoning-gym": (
        "reasoning_gym",
        "from mini_agentic_rl.environments import load_tasks; load_tasks('gsm_symbolic', 'test', 1, 0, [1])",
    ),
    "recipes, sql agent": (
        "agents",
        "from mini_agentic_rl.environments import load_recipe; load_recipe('sql')",
        "recipes.sql.agent",
    ),
    "trl, rows": ("trl", "from mini_agentic_rl.post_training import DPOSettings, train_dpo; train_dpo(DPOSettings())"),
    "trl, backend": ("trl", "from mini_agentic_rl import MiniGRPO; MiniGRPO(backend='trl')"),
    "loggers": (
        "tensorboard",
        "import sys; from pathlib import Path; from mini_agentic_rl.metrics import make_logger\n"
        "for name in [*sys.modules]:\n"
        "    if name.startswith('torch.utils.tensorboard'): del sys.modules[name]\n"
        "make_logger(['tensorboard'], Path())",
    ),
    "tau2": ("tau2 loguru", "import mini_agentic_rl.recipes.tau2.episode", "recipes.tau2.episode"),
    "tau2, tasks": ("tau2", "from mini_agentic_rl.recipes.tau2.tasks import load_tau2; load_tau2()"),
    "poml": ("poml", "import mini_agentic_rl as a; a.PromptTemplate(template='<p></p>', engine='poml').format()"),
    "recipes, mcp calculator": (
        "mcp mcp.server mcp.types",
        "import mini_agentic_rl.tools.mcp_calculator",
        "tools.mcp_calculator",
    ),
}
"""Extra, or a package that is in none → modules that are missing, code that needs them, and perhaps a module of the
package that has to be imported again."""


@pytest.mark.parametrize("case", CASES)
def test_one_line_says_what_to_install(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    missing, code, *again = CASES[case]
    absent = missing.split()
    loaded = [name for name in sys.modules if any(name.startswith(f"{package}.") for package in absent)]
    for name in (*absent, *loaded):  # a module that an earlier test loaded would be found without its package
        monkeypatch.setitem(sys.modules, name, None)
    prefixes = tuple(f"mini_agentic_rl.{module}." for module in again)
    removed = [name for name in sys.modules if f"{name}.".startswith(prefixes)]
    for name in removed:  # the package above holds it as an attribute too, and would keep what is read without `absent`
        parent, _, leaf = name.rpartition(".")
        monkeypatch.setattr(sys.modules[parent], leaf, sys.modules[name], raising=False)
    for name in removed:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("TAU2_DATA_DIR", raising=False)
    with pytest.raises(MissingPackageError) as raised:
        exec(code, {})
    extra = case.partition(",")[0]
    target = extra if extra == "poml" else f"'mini-agentic-rl[{extra}]'"
    assert f"pip install {target}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_it_is_an_error_that_a_person_can_mend_and_an_import_error() -> None:
    error = MissingPackageError("this", "that", setting="loggers")
    assert isinstance(error, UserError)
    assert isinstance(error, ImportError)
    assert str(error) == "loggers: this needs that, which is not installed: pip install that"
