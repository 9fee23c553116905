"""What code for agent-lightning 0.3 imports beside the main names, and what it does here."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys

import pytest
from mini_agentic_rl.algorithm.utils import batch_iter_over_dataset, with_llm_proxy, with_store
from mini_agentic_rl.instrumentation import instrument_all, uninstrument_all
from mini_agentic_rl.instrumentation.agentops import enable_agentops_service
from mini_agentic_rl.instrumentation.vllm import instrument_vllm
from mini_agentic_rl.utils import otel
from mini_agentic_rl.utils.id import generate_id
from mini_agentic_rl.utils.server_launcher import PythonServerLauncherArgs

import mini_agentic_rl as agl
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.logging import setup


def test_attributes_are_nested():
    flat = {"a.b": 1, "a.c": ["x", "y"], "a.d.0.e": 2.5, "a.d.1.e": True, "f.0": 1, "f.1": "one"}
    nested = {"a": {"b": 1, "c": ["x", "y"], "d": [{"e": 2.5}, {"e": True}]}, "f": [1, "one"]}
    assert otel.unflatten_attributes(flat) == nested
    assert otel.unflatten_attributes({"0": "a", "2": "c"}) == {"0": "a", "2": "c"}


def test_batches_go_on_for_ever_and_no_row_is_in_one_twice():
    batches = batch_iter_over_dataset(range(5), 2)
    seen = [row for _ in range(5) for row in next(batches)]
    assert sorted(seen) == sorted([*range(5), *range(5)])
    assert sorted(next(batch_iter_over_dataset(["a", "b"], 10))) == ["a", "b"]
    with pytest.raises(ValueError, match="batch_size"):
        next(batch_iter_over_dataset([], 2))


async def test_methods_of_an_algorithm_get_its_store_and_its_proxy():
    class Mine(agl.Algorithm):
        def run(self, train_dataset=None, val_dataset=None):
            return None

        @with_store
        async def stored(self, store, more):
            return store, more

        @with_llm_proxy()
        async def proxied(self, proxy):
            return proxy and proxy.is_running()

        @with_llm_proxy(required=True)
        async def needs(self, proxy):
            return proxy

    mine, store = Mine(), agl.InMemoryLightningStore()
    mine.set_store(store)
    assert await mine.stored(3) == (store, 3)
    assert await mine.proxied() is None
    with pytest.raises(ValueError, match="needs an LLM proxy"):
        await mine.needs()
    proxy = agl.LLMProxy(model_list=[{"model_name": "m", "base_url": "http://127.0.0.1:9/v1"}])
    mine.set_llm_proxy(proxy)
    assert await mine.proxied() is True
    assert not proxy.is_running()


def test_a_part_is_built_from_every_way_to_write_it_down():
    def built(spec, **more):
        return agl.build_component(spec, expected_type=agl.LightningStore, spec_name="store", **more)

    there = agl.InMemoryLightningStore()
    assert built(there) is there
    for spec in (agl.InMemoryLightningStore, lambda: there, "memory", {"type": "memory"}):
        registry = {"memory": "mini_agentic_rl.store.memory.InMemoryLightningStore"}
        assert isinstance(built(spec, registry=registry), agl.InMemoryLightningStore)
    made = built({"name": "memory", "scan_debounce_seconds": 2.0}, registry=registry)
    assert made._scan_debounce_seconds == 2.0
    assert built(None, default_factory=lambda: there) is there
    assert built(None, allow_none=True) is None
    made = built({"scan_debounce_seconds": 2.0}, dict_requires_type=False, dict_default_cls=agl.InMemoryLightningStore)
    assert made._scan_debounce_seconds == 2.0
    made = built(agl.InMemoryLightningStore, optional_defaults={"scan_debounce_seconds": lambda: 3.0, "other": 1})
    assert made._scan_debounce_seconds == 3.0
    with pytest.raises(ValueError, match="store must be given"):
        built(None)
    with pytest.raises(ValueError, match="cannot be imported"):
        built("nothing.there")
    with pytest.raises(TypeError, match="LightningStore, not DummyTracer"):
        built(agl.DummyTracer)


def test_errors_and_values_have_the_types_of_agent_lightning():
    assert agl.Span.from_attributes(attributes={}).status.status_code == "OK"
    for ids in ((123, "a"), ("r", 1), ("r", None)):
        with pytest.raises(ValueError, match="both as text"):
            agl.ProxyLLM(endpoint="http://127.0.0.1:9", model="m").get_base_url(*ids)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = agl.LightningStoreServer(agl.InMemoryLightningStore(), "127.0.0.1", taken.getsockname()[1])
        with pytest.raises(RuntimeError, match="in use"):
            asyncio.run(server.start())


def test_objects_are_made_from_the_command_line(monkeypatch, capsys):
    class Agent:
        def __init__(self, name: str, tools: list[str] | None = None, **rest: object) -> None:
            self.name, self.tools = name, tools

    class Run:
        def __init__(self, n_runners: int = 2, rate: float | None = 0.5, fast: bool = False) -> None:
            self.values = n_runners, rate, fast

    options = ["--agent.name", "a", "--agent.tools", "x", "y", "--run.n-runners", "4", "--run.rate", "none"]
    monkeypatch.setattr(sys, "argv", ["script", *options, "--run.fast", "yes"])
    agent, run = agl.lightning_cli(Agent, Run)
    assert (agent.name, agent.tools, run.values) == ("a", ["x", "y"], (4, None, True))
    monkeypatch.setattr(sys, "argv", ["script"])
    assert agl.lightning_cli(Run).values == (2, 0.5, False)
    with pytest.raises(SystemExit):
        agl.lightning_cli(Agent)
    assert "--agent.name" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["script", "--clientserverexecutionstrategy.role", "runners"])
    with pytest.raises(SystemExit):
        agl.lightning_cli(agl.ClientServerExecutionStrategy)
    assert "'algorithm', 'runner' or 'both', not 'runners'" in capsys.readouterr().err


def test_one_logger_is_set_up_and_returned():
    logger = agl.setup_module_logging("debug", name="mini_agentic_rl.of_test", color=False)
    assert (logger.level, len(logger.handlers), logger.propagate) == (logging.DEBUG, 1, False)
    again = agl.configure_logger(logging.WARNING, name="mini_agentic_rl.of_test")
    assert again is logger
    assert (logger.level, len(logger.handlers)) == (logging.WARNING, 1)
    agl.setup_module_logging(name="mini_agentic_rl.of_test", console=False)
    assert logger.handlers == []
    assert setup is agl.setup_logging


def test_others_fall_silent_if_asked_for():
    other = logging.getLogger("of_nobody")
    package = logging.getLogger("mini_agentic_rl")
    kept = list(package.handlers), package.level, package.propagate
    found = {logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)}
    were = {logger: logger.disabled for logger in found}
    try:
        agl.setup_logging(console=False, disable_existing_loggers=True)
        assert other.disabled
        assert not package.disabled
    finally:
        for logger, disabled in were.items():
            logger.disabled = disabled
        package.handlers[:], package.level, package.propagate = kept


def test_what_needs_no_instrumentation_says_so(caplog):
    with caplog.at_level(logging.INFO):
        for call in (instrument_all, instrument_vllm, enable_agentops_service, uninstrument_all):
            call()
    assert caplog.text.count("the gateway records the calls of models") == 3
    assert (len(generate_id(7)), generate_id(12) == generate_id(12)) == (7, False)


def test_a_tracer_of_agentops_is_an_opentelemetry_tracer():
    assert isinstance(agl.AgentOpsTracer(agentops_managed=False), agl.OtelTracer)
    trainer = agl.Trainer(tracer="mini_agentic_rl.AgentOpsTracer", n_workers=3, max_tasks=5, hooks=None)
    assert (type(trainer.tracer), trainer.n_runners, trainer.max_rollouts) == (agl.AgentOpsTracer, 3, 5)
    assert isinstance(agl.Trainer(triplet_exporter={"agent_match": "a"}).adapter, agl.TracerTraceToTriplet)


async def test_a_runner_takes_the_settings_of_heartbeats_and_sends_none_if_told_so():
    @agl.rollout
    async def agent(task) -> float:
        return 1.0

    async def heard(**settings):
        store = agl.InMemoryLightningStore()
        await store.enqueue_rollout("task")
        runner = agl.LitAgentRunner(agl.DummyTracer(), max_rollouts=1, **settings)
        with runner.run_context(agent=agent, store=store, worker_id="w"):
            await runner.iter()
        return (await store.get_worker_by_id("w")).heartbeat_stats

    assert await heard(heartbeat_interval=0) is None
    beats = await heard(heartbeat_launch_mode="thread", interval_jitter=0.1, heartbeat_include_gpu=True)
    assert isinstance(beats["gpus"], list)
    wrong = {"heartbeat_interval": -1, "heartbeat_launch_mode": "mp", "interval_jitter": -0.1}
    for name, value in (wrong | {"max_rollouts": 0, "poll_interval": 0}).items():
        with pytest.raises(ValueError, match=name):
            agl.LitAgentRunner(**{name: value})


def test_settings_of_servers_and_stores_that_have_no_effect_are_named(caplog):
    agl.InMemoryLightningStore(thread_safe=True, eviction_memory_threshold=0.5, tracker=object())
    entries = [agl.ModelConfig(model_name="m", litellm_params={"model": "openai/m"})]
    proxy = agl.LLMProxy(0, entries, callbacks=["return_token_ids", "mine"], litellm_config={}, num_workers=2)
    assert proxy.models == ["m"]
    agl.LLMProxy(launcher_args=PythonServerLauncherArgs(port=0))
    for text in ("eviction_memory_threshold", "tracker", "LLMProxy(callbacks=['mine'])"):
        assert text in caplog.text
    assert "return_token_ids" not in caplog.text


def test_a_model_of_openai_needs_no_address(monkeypatch):
    from mini_agentic_rl.gateway.proxy.upstreams import Upstream

    monkeypatch.setenv("OPENAI_API_KEY", "of-openai")
    monkeypatch.setenv("OTHER_KEY", "of-other")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    entry = {"model_name": "m", "litellm_params": {"model": "openai/gpt-4.1-mini"}}
    made = Upstream.of(entry)
    assert (made.base_url, made.model, made.api_key) == ("https://api.openai.com/v1", "gpt-4.1-mini", "of-openai")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1/")
    entry["litellm_params"]["api_key"] = "os.environ/OTHER_KEY"
    assert (Upstream.of(entry).base_url, Upstream.of(entry).api_key) == ("http://127.0.0.1:9/v1", "of-other")


def test_trying_out_an_agent_never_trains(caplog):
    class Slow(agl.Algorithm):
        def run(self, train_dataset=None, val_dataset=None):
            raise AssertionError("this trains")

    @agl.rollout
    def agent(task) -> float:
        return 1.0

    agl.Trainer(algorithm=Slow(), tracer="dummy", n_runners=1).dev(agent, ["task"])
    assert "Slow is not for trying out" in caplog.text


def test_the_tracer_of_agent_framework_turns_on_its_instrumentation(monkeypatch):
    monkeypatch.setitem(sys.modules, "agent_framework.observability", None)
    with pytest.raises(UserError, match="pip install agent-framework-core"):
        agl.AgentFrameworkTracer()
    program = (
        "import sys, types; framework = types.ModuleType('agent_framework.observability'); on = [];"
        "framework.enable_instrumentation = lambda: on.append(True);"
        "sys.modules.update({'agent_framework': types.ModuleType('a'), 'agent_framework.observability': framework});"
        "import mini_agentic_rl.compat as c; c.alias(); from agent_framework_lab_lightning import AgentFrameworkTracer;"
        "AgentFrameworkTracer(); from opentelemetry import trace; print(on, type(trace.get_tracer_provider()).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["[True]", "TracerProvider"], done.stderr


def test_a_switch_of_agent_lightnings_prompt_search_is_taken():
    from mini_agentic_rl.algorithm.apo.apo import APO
    from mini_agentic_rl.algorithm.apo.apo import batch_iter_over_dataset as same

    assert same is batch_iter_over_dataset
    assert APO[str](object(), _poml_trace=True).settings.beam_width == APO(object()).settings.beam_width
