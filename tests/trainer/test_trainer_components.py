"""Parts of the trainer by instance, class, factory, dotted path, short name and mapping."""

from __future__ import annotations

import logging

import agents_for_trainer as parts
import pytest

from mini_agentic_rl import (
    Baseline,
    ClientServerExecutionStrategy,
    DummyTracer,
    InMemoryLightningStore,
    LightningStoreClient,
    LitAgentRunner,
    LLMProxy,
    OtelTracer,
    SharedMemoryExecutionStrategy,
    SqlLightningStore,
    TracerTraceToTriplet,
    TraceToMessages,
    Trainer,
)
from mini_agentic_rl.errors import UserError

THERE = InMemoryLightningStore()


FORMS = {
    "store": [
        (THERE, InMemoryLightningStore),
        (InMemoryLightningStore, InMemoryLightningStore),
        (parts.make_store, InMemoryLightningStore),
        ("memory", InMemoryLightningStore),
        ("agents_for_trainer.make_store", InMemoryLightningStore),
        ("mini_agentic_rl.store.memory:InMemoryLightningStore", InMemoryLightningStore),
        ({"type": "memory", "scan_debounce_seconds": 1.0}, InMemoryLightningStore),
        ({"type": InMemoryLightningStore}, InMemoryLightningStore),
        ("http://127.0.0.1:4747", LightningStoreClient),
    ],
    "tracer": [("dummy", DummyTracer), ({"type": "otel"}, OtelTracer)],
    "adapter": [(None, TracerTraceToTriplet), ({"agent_match": "solver"}, TracerTraceToTriplet)],
    "runner": [(None, LitAgentRunner), (parts.CountingRunner, parts.CountingRunner)],
    "strategy": [
        (None, SharedMemoryExecutionStrategy),
        ({"type": "cs", "role": "algorithm"}, ClientServerExecutionStrategy),
        (lambda n_runners: SharedMemoryExecutionStrategy(n_runners), SharedMemoryExecutionStrategy),
    ],
    "algorithm": [("baseline", Baseline), ({"type": "agents_for_trainer:Forgetful"}, parts.Forgetful)],
    "llm_proxy": [(THERE, InMemoryLightningStore), ({"model_list": []}, LLMProxy), (LLMProxy, LLMProxy)],
}


@pytest.mark.parametrize(("keyword", "spec", "kind"), [(k, *form) for k, forms in FORMS.items() for form in forms])
def test_a_part_is_made_from_each_form(keyword, spec, kind):
    trainer = Trainer(**{keyword: spec, "n_runners": 3})
    made = getattr(trainer, keyword)
    assert type(made) is kind
    if keyword == "strategy":
        assert (made.n_runners, trainer.n_runners) == (3, 3)


def test_settings_of_the_trainer_reach_a_part_that_names_them_and_those_of_the_mapping_win():
    tracer = DummyTracer()
    trainer = Trainer(tracer=tracer, max_rollouts=7, runner={"type": LitAgentRunner, "poll_interval": 2.0})
    assert trainer.runner.tracer is tracer
    assert trainer.runner._max_rollouts == 7
    strategy = Trainer(n_runners=2, port=9999, strategy={"type": "cs", "n_runners": 5, "server_host": "::1"}).strategy
    assert (strategy.n_runners, strategy.server_port, strategy.server_host) == (5, 9999, "::1")


def test_a_file_is_a_store(tmp_path):
    for spec in (f"sqlite:///{tmp_path}/a.db", tmp_path / "b.db", str(tmp_path / "c.db")):
        assert isinstance(Trainer(store=spec).store, SqlLightningStore)
    assert {path.suffix for path in tmp_path.iterdir()} >= {".db"}


def test_the_file_in_the_run_folder_is_opened_by_the_run(tmp_path):
    for spec in ("sqlite", tmp_path / "rollouts.db", f"sqlite:///{tmp_path}/rollouts.db"):
        trainer = Trainer(algorithm=Baseline(), store=spec, output_dir=tmp_path, overwrite=True)
        assert trainer.store is None
        trainer.fit(parts.Half(), ["a"])
        assert (tmp_path / "rollouts.db").exists()


@pytest.mark.parametrize(
    ("keyword", "spec", "message"),
    [
        ("strategy", "shmm", r"Trainer\(strategy='shmm'\).*'shm', 'cs'"),
        ("strategy", "no.such.module.Name", r"Trainer\(strategy='no\.such\.module\.Name'\).*cannot be imported"),
        ("strategy", "mini_agentic_rl.execution.Nothing", r"Trainer\(strategy=.*has no 'Nothing'"),
        ("strategy", {"n_runners": 2}, r"Trainer\(strategy=\{'n_runners': 2\}\).*no 'type'"),
        ("tracer", InMemoryLightningStore(), r"Trainer\(tracer=.*expected Tracer:"),
        ("tracer", InMemoryLightningStore, r"Trainer\(tracer=.*of type InMemoryLightningStore, not Tracer"),
        ("store", "agents_for_trainer.NOT_A_PART", r"Trainer\(store=.*expected LightningStore"),
        ("store", "sqlite", r"Trainer\(store='sqlite'\) needs output_dir"),
        ("store", "gopher://here", r"gopher"),
        ("store", {"type": "memory", "colour": 1}, r"Trainer\(store=.*InMemoryLightningStore cannot be made.*colour"),
        ("store", {"type": THERE, "colour": 1}, r"Trainer\(store=.*colour cannot be given"),
        ("algorithm", 3, r"Trainer\(algorithm=3\).*expected Algorithm"),
        ("hooks", [parts.Seen, 3], r"Trainer\(hooks=3\)"),
        ("agent", "agents_for_trainer.Nobody", r"Trainer\(agent=.*has no 'Nobody'"),
        ("llm_proxy", "nowhere", r"Trainer\(llm_proxy='nowhere'\)"),
    ],
)
def test_what_names_no_part_is_told_with_its_keyword(keyword, spec, message):
    with pytest.raises(UserError, match=message):
        Trainer(**{keyword: spec})


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AGL_CURRENT_ROLE", "algorithm"),
        ("AGL_SERVER_PORT", "4848"),
        ("AGL_SERVER_HOST", "localhost"),
        ("AGL_MANAGED_STORE", "1"),
    ],
)
def test_the_environment_asks_for_processes(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    strategy = Trainer().strategy
    assert isinstance(strategy, ClientServerExecutionStrategy)
    assert isinstance(Trainer(strategy="shm").strategy, SharedMemoryExecutionStrategy)


def test_a_port_asks_for_processes_reaches_a_strategy_that_was_made_before_or_is_warned_of(caplog):
    strategy = Trainer(port=4949).strategy
    assert isinstance(strategy, ClientServerExecutionStrategy)
    assert strategy.server_port == 4949
    assert Trainer(strategy=strategy, port=5678).strategy is strategy
    assert Trainer(strategy=strategy).strategy.server_port == 5678
    with caplog.at_level(logging.WARNING):
        Trainer(port=4949, strategy="shm")
        assert Trainer(n_runners=4, strategy=SharedMemoryExecutionStrategy(2)).n_runners == 2
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "Trainer(port=4949) has no effect",
        "Trainer(n_runners=4) has no effect",
    ]


@pytest.mark.parametrize(
    ("keyword", "told"),
    [
        ("n_runner", "n_runner is unknown: did you mean `n_runners`?"),
        ("val_data", "val_data is unknown: did you mean `val_dataset`?"),
        ("num_train_epochs", "num_train_epochs is unknown: here it is `num_epochs`"),
        ("report_to", "report_to is no argument of Trainer: here it is `logger`"),
        ("learning_rate", "give it to the algorithm, Trainer(algorithm=MiniGRPO(…))"),
        ("num_generations", "give it to the algorithm, Trainer(algorithm=MiniGRPO(…))"),
        ("lora_r", "give it to the algorithm, Trainer(algorithm=MiniGRPO(…))"),
        ("zzz", "zzz is no argument of Trainer: it takes algorithm, agent, "),
    ],
)
def test_an_unknown_keyword_is_refused_with_what_was_meant(keyword, told):
    with pytest.raises(UserError) as refused:
        Trainer(**{keyword: 1})
    assert told in str(refused.value)
    assert isinstance(refused.value, TypeError)  # what Python raises for such a call


def test_older_names_mean_the_same_and_a_value_under_both_names_is_refused():
    adapter = TraceToMessages()
    trainer = Trainer(n_workers=3, max_tasks=2, triplet_exporter=adapter, resources={}, daemon=False)
    assert (trainer.n_runners, trainer.max_rollouts, trainer.adapter) == (3, 2, adapter)
    for both in ({"n_workers": 3, "n_runners": 3}, {"max_tasks": 2, "max_rollouts": 2}):
        with pytest.raises(ValueError, match="two names of one thing"):
            Trainer(**both)


def test_a_trainer_derived_from_it_has_keywords_of_its_own():
    class Mine(Trainer):
        def __init__(self, *, colour, **rest):
            super().__init__(**rest)
            self.colour = colour

    assert Mine(colour="red", n_runners=1).colour == "red"
    with pytest.raises(UserError, match="did you mean `n_runners`"):
        Mine(colour="red", n_runner=1)
