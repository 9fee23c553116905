"""What needs a package that is not installed says so in one line, with the command that installs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mini_agentic_rl.errors import MissingPackageError, UserError


def _adamw_8bit():
    import torch

    from mini_agentic_rl.policy.learner import LearnerSettings, _make_optimizer

    return _make_optimizer([torch.zeros(1)], LearnerSettings(optimizer="adamw_8bit"), torch.device("cpu"))


def _bitsandbytes():
    import torch

    from mini_agentic_rl.policy import quantization_config

    return quantization_config("4bit", torch.float32)


def _postgres():
    from mini_agentic_rl.store import open_store

    return open_store("postgresql://nobody@127.0.0.1:1/none")


def _mongo():
    from mini_agentic_rl.store import open_store

    return open_store("mongodb://127.0.0.1:1/none")


def _otlp():
    from mini_agentic_rl.tracer.otel import _sender

    return _sender("http://127.0.0.1:1", None)


def _ray():
    from mini_agentic_rl.execution import RayExecutionStrategy
    from mini_agentic_rl.store import InMemoryLightningStore

    async def nothing(*given): ...

    return RayExecutionStrategy().execute(nothing, nothing, InMemoryLightningStore())


def _reasoning():
    from mini_agentic_rl.environments import load_tasks

    return load_tasks("gsm_symbolic", "test", 1, 0, [1])


def _sql_agent():
    from mini_agentic_rl.environments import load_recipe

    return load_recipe("sql")


def _written_rows():
    from mini_agentic_rl.post_training import DPOSettings, train_dpo

    return train_dpo(DPOSettings())


def _trl_backend():
    from mini_agentic_rl import MiniGRPO

    return MiniGRPO(backend="trl")


def _tensorboard():
    from mini_agentic_rl.metrics import make_logger

    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        del sys.modules[name]  # an earlier test loaded it

    return make_logger(["tensorboard"], Path())


def _tau2():
    import mini_agentic_rl.recipes.tau2.episode

    return mini_agentic_rl.recipes.tau2.episode


def _otlp_export():
    from mini_agentic_rl import InMemoryLightningStore
    from mini_agentic_rl.trainer import TraceExportSettings, exported

    with exported(InMemoryLightningStore(), TraceExportSettings(otlp="http://localhost:6006")):
        pass


def _tau2_tasks():
    from mini_agentic_rl.recipes.tau2.tasks import load_tau2

    return load_tau2()


def _mcp_calculator():
    import mini_agentic_rl.tools.mcp_calculator

    return mini_agentic_rl.tools.mcp_calculator


def _poml():
    from mini_agentic_rl import PromptTemplate

    return PromptTemplate(template="<p></p>", engine="poml").format()


CASES = {
    "quant": (("bitsandbytes", "bitsandbytes.optim"), _bitsandbytes, ()),
    "quant, optimizer": (("bitsandbytes", "bitsandbytes.optim"), _adamw_8bit, ()),
    "services, postgres": (("psycopg",), _postgres, ("store.sql.backends",)),
    "services, mongo": (("pymongo",), _mongo, ("integrations.mongo.connection",)),
    "services, otlp": (("opentelemetry.exporter.otlp.proto.http.trace_exporter",), _otlp, ()),
    "services, export": (("opentelemetry.exporter.otlp.proto.http.trace_exporter",), _otlp_export, ()),
    "ray": (("ray",), _ray, ()),
    "recipes, reasoning-gym": (("reasoning_gym",), _reasoning, ()),
    "recipes, sql agent": (("agents",), _sql_agent, ("recipes.sql.agent",)),
    "trl, rows": (("trl",), _written_rows, ()),
    "trl, backend": (("trl",), _trl_backend, ()),
    "loggers": (("tensorboard",), _tensorboard, ()),
    "tau2": (("tau2", "loguru"), _tau2, ("recipes.tau2.episode",)),
    "tau2, tasks": (("tau2",), _tau2_tasks, ()),
    "poml": (("poml",), _poml, ()),
    "recipes, mcp calculator": (("mcp", "mcp.server", "mcp.types"), _mcp_calculator, ("tools.mcp_calculator",)),
}
"""Extra, or package that is in none → modules that are not there, what asks for them, and modules of the package that
have to be read again."""


@pytest.mark.parametrize("case", CASES)
def test_one_line_says_what_to_install(case, monkeypatch):
    absent, ask, read_again = CASES[case]
    loaded = [name for name in sys.modules if any(name.startswith(f"{package}.") for package in absent)]
    for name in (*absent, *loaded):  # a module that an earlier test loaded would be found without its package
        monkeypatch.setitem(sys.modules, name, None)
    removed = [
        name
        for name in sys.modules
        if any(f"{name}.".startswith(f"mini_agentic_rl.{module}.") for module in read_again)
    ]
    for name in removed:  # the package above holds it as an attribute too, and would keep what is read without `absent`
        parent, _, leaf = name.rpartition(".")
        monkeypatch.setattr(sys.modules[parent], leaf, sys.modules[name], raising=False)
    for name in removed:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delenv("TAU2_DATA_DIR", raising=False)
    with pytest.raises(MissingPackageError) as raised:
        ask()
    extra = case.partition(",")[0]
    target = extra if extra == "poml" else f"'mini-agentic-rl[{extra}]'"
    assert f"pip install {target}" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_it_is_an_error_that_a_person_can_mend_and_an_import_error():
    error = MissingPackageError("this", "that", setting="loggers")
    assert isinstance(error, UserError)
    assert isinstance(error, ImportError)
    assert str(error) == "loggers: this needs that, which is not installed: pip install that"
