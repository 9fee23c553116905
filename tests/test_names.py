"""The names and signatures that code written for agent-lightning 0.3 relies on, under both import names."""

from __future__ import annotations

import inspect
import json
import pickle
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from urllib.request import urlopen

import pytest

import mini_agent_lighting
import mini_agentic_rl as agl
from mini_agentic_rl.compat import MOVED, current
from processes import PythonProcess

MODULES = """
    types store store.base store.memory store.threading store.client_server store.utils runner litagent
    litagent.decorator emitter emitter.annotation emitter.exception emitter.message emitter.object emitter.reward
    adapter adapter.triplet adapter.messages tracer tracer.base tracer.dummy tracer.otel execution execution.base
    execution.client_server execution.events execution.shared_memory trainer algorithm semconv reward config logging
    llm_proxy env_var
"""

EXPORTS = """
    Adapter TraceAdapter OtelTraceAdapter TraceToTripletBase TracerTraceToTriplet LlmProxyTraceToTriplet
    TraceToMessages Algorithm algo FastAlgorithm Baseline APO VERL emit_reward emit_message emit_object
    emit_exception emit_annotation operation reward get_reward_value get_rewards_from_span is_reward_span
    find_reward_spans find_final_reward get_message_value get_object_value ExecutionStrategy
    ClientServerExecutionStrategy SharedMemoryExecutionStrategy ExecutionEvent ThreadingEvent MultiprocessingEvent
    LitAgent rollout llm_rollout prompt_rollout Runner LitAgentRunner LightningStore LightningStoreCapabilities
    LightningStoreStatistics LightningStoreClient LightningStoreServer InMemoryLightningStore LightningStoreThreaded
    Tracer OtelTracer DummyTracer get_active_tracer set_active_tracer clear_active_tracer Trainer LLMProxy
    setup_logging LightningEnvVar resolve_bool_env_var resolve_int_env_var resolve_str_env_var Rollout Attempt
    AttemptedRollout RolloutConfig EnqueueRolloutRequest Worker Triplet Task Span SpanCoreFields PaginatedResult
    Dataset Hook LLM ProxyLLM PromptTemplate NamedResources Resource ResourcesUpdate AgentOpsTracer build_component
    lightning_cli setup_module_logging configure_logger TaskInput RolloutMode RolloutStatus AttemptStatus
    WorkerStatus ResourceUnion Attributes AttributeValue TraceStatus OtelResource SpanContext SpanLike Event Link
    TraceState StatusCode SpanNames SpanAttributeNames SpanRecordingContext ParallelWorkerBase RolloutRawResult
    ModelConfig MiniGRPO MiniLLMServer SqlLightningStore MongoLightningStore TokenTree init
"""

ROLLOUT_FIELDS = "input mode resources_id config metadata"
PAGE_FIELDS = "sort_by sort_order limit offset"

# What is called, how many arguments it takes by position after `self`, and which by keyword.
SIGNATURES = {
    "LightningStore.start_rollout": (1, f"{ROLLOUT_FIELDS} worker_id"),
    "LightningStore.enqueue_rollout": (1, ROLLOUT_FIELDS),
    "LightningStore.enqueue_many_rollouts": (1, ""),
    "LightningStore.dequeue_rollout": (0, "worker_id"),
    "LightningStore.dequeue_many_rollouts": (0, "limit worker_id"),
    "LightningStore.start_attempt": (1, "rollout_id worker_id"),
    "LightningStore.add_span": (1, ""),
    "LightningStore.add_many_spans": (1, ""),
    "LightningStore.add_otel_span": (3, "rollout_id attempt_id readable_span sequence_id"),
    "LightningStore.get_next_span_sequence_id": (2, "rollout_id attempt_id"),
    "LightningStore.get_many_span_sequence_ids": (1, ""),
    "LightningStore.query_rollouts": (0, f"status_in rollout_id_in rollout_id_contains filter_logic {PAGE_FIELDS}"),
    "LightningStore.query_attempts": (1, f"rollout_id {PAGE_FIELDS}"),
    "LightningStore.query_resources": (0, PAGE_FIELDS),
    "LightningStore.query_workers": (0, PAGE_FIELDS),
    "LightningStore.query_spans": (
        2,
        "rollout_id attempt_id trace_id span_id parent_id name trace_id_contains span_id_contains parent_id_contains "
        f"name_contains filter_logic {PAGE_FIELDS}",
    ),
    "LightningStore.get_rollout_by_id": (1, "rollout_id"),
    "LightningStore.get_latest_attempt": (1, "rollout_id"),
    "LightningStore.get_resources_by_id": (1, "resources_id"),
    "LightningStore.get_latest_resources": (0, ""),
    "LightningStore.get_worker_by_id": (1, "worker_id"),
    "LightningStore.add_resources": (1, "resources"),
    "LightningStore.update_resources": (2, "resources_id resources"),
    "LightningStore.update_rollout": (1, f"rollout_id {ROLLOUT_FIELDS} status"),
    "LightningStore.update_attempt": (2, "rollout_id attempt_id status worker_id last_heartbeat_time metadata"),
    "LightningStore.update_worker": (1, "worker_id heartbeat_stats"),
    "LightningStore.wait_for_rollouts": (0, "rollout_ids timeout"),
    "LightningStore.statistics": (0, ""),
    "LightningStore.otlp_traces_endpoint": (0, ""),
    "InMemoryLightningStore": (0, "scan_debounce_seconds"),
    "LightningStoreThreaded": (1, "store"),
    "LightningStoreServer": (3, "store host port"),
    "LightningStoreClient": (1, "server_address"),
    "LitAgent": (0, "trained_agents"),
    **{
        f"LitAgent.{mode}rollout{ending}": (3, "task resources rollout")
        for mode in ("", "training_", "validation_")
        for ending in ("", "_async")
    },
    "LitAgent.is_async": (0, ""),
    "llm_rollout": (1, "func strip_proxy"),
    "prompt_rollout": (1, "func"),
    "rollout": (1, ""),
    "Hook.on_rollout_start": (0, "agent runner rollout"),
    "Hook.on_trace_start": (0, "agent runner tracer rollout"),
    "Hook.on_trace_end": (0, "agent runner tracer rollout"),
    "Hook.on_rollout_end": (0, "agent runner rollout spans"),
    "LitAgentRunner": (1, "tracer max_rollouts poll_interval heartbeat_interval"),
    "LitAgentRunner.iter": (0, "event"),
    "LitAgentRunner.step": (1, "input resources mode event"),
    "LitAgentRunner.run_context": (0, "agent store hooks worker_id"),
    "Tracer.trace_context": (1, "name store rollout_id attempt_id"),
    "Tracer.get_last_trace": (0, ""),
    "Tracer.trace_run": (1, "func"),
    "Tracer.trace_run_async": (1, "func"),
    "Tracer.create_span": (4, "name attributes timestamp status"),
    "Tracer.operation_context": (4, "name attributes start_time end_time"),
    "Tracer.lifespan": (1, "store"),
    "Tracer.get_langchain_handler": (0, ""),
    "emit_reward": (1, "reward primary_key attributes propagate"),
    "emit_message": (1, "message attributes propagate"),
    "emit_object": (1, "object attributes propagate"),
    "emit_exception": (1, "exception attributes propagate"),
    "emit_annotation": (1, "annotation propagate"),
    "operation": (1, "fn name propagate anything_else"),
    "TracerTraceToTriplet": (0, "repair_hierarchy llm_call_match agent_match exclude_llm_call_in_reward reward_match"),
    "TraceToMessages": (0, ""),
    "Trainer": (
        0,
        "dev n_runners max_rollouts initial_resources tracer adapter store runner strategy port algorithm llm_proxy "
        "hooks",
    ),
    "Trainer.fit": (2, "agent train_dataset val_dataset"),
    "Trainer.dev": (2, "agent train_dataset val_dataset"),
    "SharedMemoryExecutionStrategy": (0, "n_runners main_thread join_timeout"),
    "ClientServerExecutionStrategy": (
        0,
        "role server_host server_port n_runners graceful_timeout terminate_timeout main_process managed_store "
        "allowed_exit_codes",
    ),
    "Baseline": (0, "n_epochs train_split polling_interval max_queue_length span_verbosity"),
    "APO": (
        1,
        "async_openai_client gradient_model apply_edit_model diversity_temperature gradient_batch_size val_batch_size "
        "beam_width branch_factor beam_rounds rollout_batch_timeout run_initial_validation",
    ),
    "APO.get_best_prompt": (0, ""),
    "VERL": (1, "config"),
    "LLMProxy": (2, "port model_list store host num_retries"),
    "ProxyLLM.get_base_url": (2, "rollout_id attempt_id"),
    "LLM.get_base_url": (2, ""),
    "Span.from_opentelemetry": (4, "src rollout_id attempt_id sequence_id"),
    "Span.from_attributes": (0, "attributes rollout_id attempt_id sequence_id name"),
    "Span.from_core_fields": (1, "core rollout_id attempt_id sequence_id"),
    "Runner.run_context": (0, "agent store hooks worker_id"),
    "setup_logging": (1, "level console color propagate submodule_levels extra_handlers formatter apply_to files"),
}

FIELDS = {
    "Rollout": "rollout_id input start_time end_time mode resources_id status config metadata",
    "Attempt": "rollout_id attempt_id sequence_id start_time end_time status worker_id last_heartbeat_time metadata",
    "AttemptedRollout": "rollout_id attempt",
    "RolloutConfig": "timeout_seconds unresponsive_seconds max_attempts retry_condition",
    "EnqueueRolloutRequest": ROLLOUT_FIELDS,
    "Worker": "worker_id status heartbeat_stats last_heartbeat_time last_dequeue_time last_busy_time last_idle_time "
    "current_rollout_id current_attempt_id",
    "Triplet": "prompt response reward metadata",
    "Span": "rollout_id attempt_id sequence_id trace_id span_id parent_id name status attributes events links "
    "start_time end_time context parent resource",
    "LLM": "endpoint model api_key sampling_parameters",
    "PromptTemplate": "template engine",
    "ResourcesUpdate": "resources_id create_time update_time version resources",
    "PaginatedResult": "items limit offset total",
}

# `module` or `module:attribute`, as the README, the guides, the examples and those who asked for this package write it.
SHOWN = """
    mini_agent_lighting:Trainer mini_agent_lighting.litagent:LitAgent mini_agent_lighting.types:Hook
    mini_agent_lighting.types:Rollout mini_agent_lighting.types:Task
    mini_agent_lighting.algorithm.mini_grpo:MiniGRPO mini_agent_lighting.utils.mini_llm_server:MiniLLMServer
    mini_agentic_rl.core:LLMConfig mini_agentic_rl.agents:LLMConfig mini_agentic_rl.agents:SimpleAgent
    mini_agentic_rl.agents.simple_agent:SimpleAgent mini_agentic_rl.algorithm.measure:Measure
    mini_agentic_rl.policy:LearnerSettings mini_agentic_rl.cli.script:number mini_agentic_rl.cli.script:run_script
    mini_agentic_rl.datasets:ArithmeticDataset mini_agentic_rl.datasets:divide_examples
    mini_agentic_rl.datasets:load_examples mini_agentic_rl.datasets:load_task_dataset
    mini_agentic_rl.post_training:SFTSettings mini_agentic_rl.post_training:train_sft
    mini_agentic_rl.post_training.scoring.server:ScoreServer mini_agentic_rl.rewards:AccuracyReward
    mini_agentic_rl.rewards:Criterion mini_agentic_rl.rewards:FormatReward mini_agentic_rl.rewards:JudgeReward
    mini_agentic_rl.rewards:WeightedSum mini_agentic_rl.rewards.math:is_correct mini_agentic_rl.rl.datasets:STAND_IN
    mini_agentic_rl.rl.datasets:usual_dataset mini_agentic_rl.rl_training_tool:RLTrainingTool
    mini_agentic_rl.tools:RLTrainingTool mini_agentic_rl.tools:CALCULATOR_TOOL mini_agentic_rl.tools:calculate
    mini_agentic_rl.tools.mcp_calculator mini_agentic_rl.recipes.sql.tool:SqlDatabase
    mini_agentic_rl.trainer.statistics:pass_at_k mini_agentic_rl.trainer.statistics:wilson_interval
    mini_agentic_rl:LoggingHook mini_agentic_rl.store.client_server:LightningStoreClient
    mini_agentic_rl.store.client_server:LightningStoreServer mini_agentic_rl.env_var:LightningEnvVar
    mini_agentic_rl.llm_proxy:LLMProxy mini_agentic_rl.reward:find_final_reward
"""

# What callers of HelloAgents import from `mini_agentic_rl.rl`.
OF_RL = """
    TrainingConfig SFTTrainerWrapper GRPOTrainerWrapper PPOTrainerWrapper GSM8KDataset create_math_dataset
    format_math_dataset create_sft_dataset create_rl_dataset preview_dataset MathRewardFunction
    create_accuracy_reward create_length_penalty_reward create_step_reward evaluate_rewards train_with_sft
    train_with_grpo load_dataset create_reward_function evaluate_model TRL_AVAILABLE check_trl_installation
    get_installation_guide get_device_info usual_dataset LLMConfig SimpleAgent
"""


def test_a_module_has_one_object_under_both_names():
    for name in MODULES.split():
        module = import_module(f"mini_agentic_rl.{name}")
        assert import_module(f"mini_agent_lighting.{name}") is module, name
        assert module.__name__ == module.__spec__.name == f"mini_agentic_rl.{current(name)}", name


def test_a_name_can_be_had_from_the_top_alone_and_with_all_others():
    names: dict[str, object] = {}
    exec("from mini_agent_lighting import *", names)
    assert set(EXPORTS.split()) <= set(names) & set(dir(agl))


def _named(path):
    target = agl
    for part in path.split("."):
        target = getattr(target, part)
    return target


def test_a_signature_takes_what_callers_pass():
    for path, (positional, names) in SIGNATURES.items():
        signature = inspect.signature(_named(path))
        this = [None] if next(iter(signature.parameters), None) == "self" else []
        in_order = list(signature.bind_partial(*this, *[None] * positional).arguments)[len(this) :]
        keywords = names.split()
        if keywords:
            assert in_order == keywords[:positional], path
            signature.bind(*this, **dict.fromkeys(keywords))


def test_a_type_has_the_fields_that_callers_read():
    for name, fields in FIELDS.items():
        assert set(fields.split()) <= set(getattr(agl, name).model_fields), name


def test_a_module_that_has_moved_is_found_under_its_older_name():
    for old, place in MOVED.items():
        new = import_module(f"mini_agentic_rl.{place}")
        assert import_module(f"mini_agentic_rl.{old}") is import_module(f"mini_agent_lighting.{old}") is new, old
        assert new.__spec__.name == new.__name__, old
        path = Path(agl.__file__).parent.joinpath(*old.split("."))
        assert not path.with_suffix(".py").exists(), f"a module hides the one that has moved from {old}"
        assert not (path / "__init__.py").exists(), f"a package hides the one that has moved from {old}"


def test_a_name_that_was_shown_to_users_is_found():
    for name in [*SHOWN.split(), *(f"mini_agentic_rl.rl:{name}" for name in OF_RL.split())]:
        module, _, attribute = name.partition(":")
        assert hasattr(import_module(module), attribute or "__name__"), name


def test_the_older_name_is_the_package_itself():
    assert mini_agent_lighting is agl
    assert sys.modules["mini_agent_lighting"].__spec__.name == "mini_agentic_rl"


def test_what_was_pickled_under_the_older_name_is_read():
    assert pickle.loads(b"cmini_agent_lighting.types.core\nRolloutConfig\n.") is agl.RolloutConfig


@pytest.mark.parametrize("name", ["nothing", "algorithm.nothing", "algorithm.nothing.deeper", "utils.nothing"])
def test_a_module_that_does_not_exist_is_named_in_the_error(name):
    with pytest.raises(ModuleNotFoundError, match=r"mini_agent_lighting\."):
        import_module(f"mini_agent_lighting.{name}")


def test_both_the_module_and_the_function_called_reward_decorate():
    program = (
        "import {first}; from mini_agentic_rl import reward; import mini_agentic_rl.reward as module; "
        "from mini_agentic_rl import DummyTracer; t = DummyTracer(); "
        "print(t.trace_run(reward(lambda: 0.5)), t.trace_run(module.reward(lambda: 0.25)), callable(module))"
    )
    for first in ("mini_agentic_rl.reward", "mini_agentic_rl"):
        command = [sys.executable, "-c", program.format(first=first)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.stdout.split() == ["0.5", "0.25", "True"], done.stderr


def test_the_model_server_runs_as_a_module_under_the_older_name(tiny_folder):
    options = ["--model", tiny_folder, "--port", "0"]
    with PythonProcess("mini_agent_lighting.utils.mini_llm_server", *options) as process:
        address = process.wait_for_word("http://")
        with urlopen(f"{address}/models", timeout=10) as answer:
            assert json.load(answer)["data"]
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
