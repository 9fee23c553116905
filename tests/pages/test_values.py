"""The values, settings and numbers that the Python blocks of docs/ show."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from itertools import pairwise

import httpx
import numpy as np
import pytest
from openai import OpenAI

from integrations.otlp.collector import Collector, facts
from mini_agentic_rl import Trainer, llm_rollout
from mini_agentic_rl.algorithm import ADVANTAGES
from mini_agentic_rl.commands import PlanSettings, plan_job
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.integrations.tinker import TinkerSettings
from mini_agentic_rl.integrations.tinker.losses import LOSSES
from mini_agentic_rl.integrations.tinker.settings import ClientSettings
from mini_agentic_rl.policy import DEFAULT_ADAPTER, load_model
from mini_agentic_rl.policy.load import save_weights
from mini_agentic_rl.post_training import RewardModelSettings, train_reward_model
from pages.snippets import ROOT, fenced_blocks, python_block
from rewards.servers import serving

MINI_GRPO = "from mini_agentic_rl import VERL, MiniGRPO"
PRESETS = python_block("docs/algorithms.md", 'preset="rloo"')
LORA = python_block("docs/algorithms.md", "lora_dropout=0.05")
ADVANTAGE = python_block("docs/tutorials/add-a-loss.md", 'register_advantage("floored")')
FROM_VERL = python_block("docs/migration.md", "algorithm = VERL(")
SUM = python_block("docs/rewards.md", "reward = WeightedSum(")
POLITE = python_block("docs/rewards.md", "def polite(")
JUDGE = python_block("docs/rewards.md", "judge = JudgeReward(")
ROWS = python_block("docs/datasets.md", "divide_examples(rows")
LEARNT = python_block("docs/commands.md", "def learnt(")
PLANNED = python_block("docs/tutorials/four-gigabytes.md", "plan_job(")
RUNNERS = python_block("docs/scaling.md", "ClientServerExecutionStrategy(")
INIT = python_block("docs/scaling.md", "init()")
EXPORT = python_block("docs/traces.md", "Trainer(otlp=")
TINKER = python_block("docs/tinker.md", "create_lora_training_client")
TASKSET = python_block("docs/environments.md", "vf.resolve_env_config")
SFT = python_block("docs/post-training.md", "train_sft(SFTSettings(")
SCORES = python_block("docs/reward-service.md", "with ScoreServer(")
STATIONS = [
    python_block("docs/architecture.md", part)
    for part in (
        *("Policy.load(", "token, recorded =", "tree = TokenTree()", "packed = pack(", "rewards = np.array"),
        *("lengths = np.bincount", "learner = policy.run", "def loss(", "def step(", "policy.close()"),
    )
]


@llm_rollout
def letters(task, llm):
    """Answer with many different letters."""
    client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none")
    messages = [{"role": "user", "content": task["word"]}]
    reply = client.chat.completions.create(model=llm.model, messages=messages, **llm.sampling_parameters)
    return float(len(set(reply.choices[0].message.content or "")))


def test_a_preset_chooses_the_settings_and_what_is_given_by_name_wins(here):
    rest = {", ...}": ', "actor_rollout_ref": {"rollout": {"n": 4}}}'}
    rloo, dapo, verl = (algorithm.settings for algorithm in PRESETS.run(rest, before=MINI_GRPO).values)
    assert (rloo.preset, rloo.baseline) == ("rloo", "leave_one_out")
    assert (dapo.preset, dapo.clip_ratio, dapo.clip_ratio_high, dapo.dynamic_sampling) == ("dapo", 0.2, 0.3, True)
    assert (verl.baseline, verl.samples_per_prompt) == ("leave_one_out", 4)


def test_a_verl_configuration_gives_the_settings_of_the_page(here):
    ran = FROM_VERL.run()
    assert len(ran.values) == 3  # compared with their comments
    settings = ran.names["algorithm"].settings
    assert (settings.tasks_per_step, settings.max_new_tokens, settings.clip_ratio_high) == (8, 48, 0.28)


def test_an_adapter_takes_the_names_of_peft(here):
    (algorithm,) = LORA.run({"lora=lora": "lora=lora, total_steps=0, keep_open=True"}, before=MINI_GRPO).values
    Trainer(algorithm=algorithm).fit(letters, [{"word": "lamp"}])
    try:
        save_weights(algorithm.served.policy.model, here / "adapter", DEFAULT_ADAPTER)
    finally:
        algorithm.close()
    config = json.loads((here / "adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (8, 16, 0.05)
    assert set(config["target_modules"]) == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_a_program_adds_an_advantage(here):
    try:
        (algorithm,) = ADVANTAGE.run(before=MINI_GRPO).values
        assert ADVANTAGES["floored"](np.array([1.0, 0.0, 0.0])).tolist() == [1.0, -0.25, -0.25]
    finally:
        ADVANTAGES.pop("floored", None)
    assert algorithm.settings.baseline == "floored"


def test_a_token_is_followed_from_the_draw_to_the_gradient(here):
    names, printed = {}, ""
    for block in STATIONS:
        ran = block.run(given=names)
        names |= ran.names
        printed += ran.printed
    assert "by version 0" in printed
    tree, apart = (int(word) for word in printed.splitlines()[1].split() if word.isdigit())
    assert tree < apart, "the prompt is there once"
    assert names["norm"] > 0


def test_a_weighted_sum_gives_the_number_that_the_page_shows(here):
    ran = SUM.run()
    assert len(ran.values) == 1  # compared with its comment by `run`
    assert "# [1.2]" in SUM.text
    assert ran.names["reward"](completions=["Answer: 35"], prompts=["12 times 3?"], ground_truth=["36"]) == [0.2]


def test_any_callable_is_part_of_a_sum(here):
    (total,) = POLITE.run(before="from mini_agentic_rl.rewards import AccuracyReward, WeightedSum").values
    columns = {"prompts": ["12 times 3?"] * 2, "ground_truth": ["36"] * 2}
    assert total(completions=["Answer: 36, if you please", "Answer: 36"], **columns) == [2.0, 1.0]


def test_a_judge_weighs_its_criteria_at_the_endpoint_that_it_is_given(here, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    requests = []

    def judged(path, body, headers):
        requests.append((path, body["model"]))
        verdict = json.dumps({"reason": "true, but not clear", "scores": {"truth": 5, "clarity": 1}})
        choices = [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": verdict}}]
        return 200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}

    with serving(judged) as url:
        judge = JUDGE.run({"http://localhost:8000": url}).names["judge"]
        (score,) = judge(completions=["Rest."], prompts=["What helps?"])
    assert requests == [("/v1/chat/completions", "gpt-4o-mini")]
    assert score == pytest.approx((3 * 0.5 + 0.1) / 4)  # of scores from 0 to 10


def test_examples_are_divided_into_training_and_held_out_ones(here):
    names = ROWS.run().names
    train, held_out = names["train"], names["held_out"]
    assert (len(names["rows"]), len(train), len(held_out)) == (500, 450, 50)
    assert not {str(row) for row in train} & {str(row) for row in held_out}


def test_a_run_has_learnt_where_intervals_are_apart(here):
    folder = here / "outputs/run-1"
    folder.mkdir(parents=True)
    for low, learnt in ((0.5, "True"), (0.2, "False")):
        rows = [{"name": "before", "low": 0.0, "high": 0.3}, {"name": "after RL", "low": low, "high": 0.9}]
        (folder / "summary.json").write_text(json.dumps({"accuracy": rows}))
        assert LEARNT.run().printed.strip() == learnt


def test_a_plan_tells_a_size_and_options_that_train_takes(here):
    (printed,) = PLANNED.run().printed.splitlines()
    size, _, options = printed.partition(" GB with: mini-agentic-rl train ")
    assert 0 < float(size) <= 4
    assert "--model embedded" in options


SHAPES = {
    "Qwen2.5-0.5B": (896, 24, 14, 2, 4864, 151936, True),
    "Qwen2.5-1.5B": (1536, 28, 12, 2, 8960, 151936, True),
    "Qwen2.5-3B": (2048, 36, 16, 2, 11008, 151936, True),
    "Qwen2.5-7B": (3584, 28, 28, 4, 18944, 152064, False),
}
"""From the published configurations: the values of `FIELDS`."""
FIELDS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "tie_word_embeddings"),
)


def test_the_table_of_cards_is_what_the_plan_chooses(here, tmp_path):
    planned = {}
    for name, values in SHAPES.items():
        (tmp_path / name).mkdir()
        config = {"model_type": "qwen2", **dict(zip(FIELDS, values, strict=True))}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        for card in (4, 6, 8, 12, 24):
            try:
                plan = plan_job(PlanSettings(model=str(tmp_path / name), vram=f"{card}GB"))
            except UserError:
                continue
            words = plan["options"].split()
            value = dict(pairwise(words)).__getitem__
            checkpointing = "yes" if "--gradient-checkpointing" in plan["options"] else "no"
            weights = {"none": "bfloat16", "4bit": "4-bit"}[value("--quantization")]
            chunk, peak = f"{int(value('--max-batch-tokens')):,}", f"{plan['peak_bytes'] / 1e9:.1f}"
            planned[name, str(card)] = [weights, checkpointing, chunk, value("--cache-mib"), peak]
    for page in ("four-gigabytes.md", "four-gigabytes.zh.md"):
        text = (ROOT / "docs/tutorials" / page).read_text(encoding="utf-8")
        shown = {}
        for line in text.splitlines():
            if line.startswith("| Qwen2.5-"):
                name, cards, weights, checkpointing, *sizes = line.strip("| ").split(" | ")
                checkpointing = {"否": "no", "是": "yes"}.get(checkpointing, checkpointing)
                shown.update({(name, card): [weights, checkpointing, *sizes] for card in cards.split(", ")})
        assert shown == planned


def test_runners_alone_have_a_role(here):
    assert RUNNERS.run().names["runners"].strategy.role == "runner"


def test_a_process_is_traced_after_one_call_and_a_second_changes_nothing(here):
    look = """
from opentelemetry import trace
first = trace.get_tracer_provider()
init()
print(type(first).__module__, trace.get_tracer_provider() is first)
"""
    done = subprocess.run([sys.executable, "-c", INIT.text + look], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["opentelemetry.sdk.trace", "True"]
    assert "Traceback" not in done.stderr


def test_a_trainer_sends_a_trace_of_each_attempt(here):
    with Collector() as collector:
        EXPORT.run({"http://localhost:6006": collector.url})
    roots = [span for span in collector.spans if not span.parent_span_id]
    assert [root.name for root in roots] == ["invoke_agent guess"] * 2
    assert sorted(facts(root)["agentlightning.reward"] for root in roots) == [0.0, 1.0]


def test_the_example_of_tinker_asks_for_the_model_and_a_loss_that_the_server_has():
    """tests/real_integrations runs it."""
    calls = {
        call.func.attr: call
        for call in ast.walk(ast.parse(TINKER.text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    }
    base_model, rank = (each.value.value for each in calls["create_lora_training_client"].keywords)
    assert base_model == TinkerSettings().load.model
    assert rank <= ClientSettings().max_rank
    assert calls["forward_backward"].args[1].value in LOSSES


def test_our_tasks_are_those_of_a_taskset():
    pytest.importorskip("verifiers", reason="verifiers is not installed: `make test-real` runs this test")
    env = TASKSET.run({'"size": 200': '"size": 2'}).names["env"]
    assert [task.data.world for task in env.taskset] == ["guess", "guess"]


def test_sft_prints_its_losses_and_leaves_the_folder_of_the_page(here):
    rows = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(12)]
    (here / "gsm8k").mkdir()  # docs/datasets.md: it is taken before the Hub
    for split in ("train", "test"):
        (here / "gsm8k" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    before, after = map(float, SFT.run().printed.split())
    assert after < before
    folder = here / "outputs" / "sft"
    load_model(str(folder))
    (_, tree), *_ = fenced_blocks("docs/post-training.md", "")
    names = [word.rstrip("/") for line in tree.splitlines() for word in line.split("  ") if "." in word or "/" in word]
    assert names
    for name in names:
        assert list(folder.glob(name.replace("epoch_N", "epoch_1"))), name


def test_a_reward_model_is_served_from_python(here):
    train_reward_model(RewardModelSettings(output_dir="outputs/judge", max_samples=8, num_epochs=1))
    health = {"print(server.url)": 'print(server.url, get(f"{server.url}/health").status_code)'}
    url, status = SCORES.run(health, given={"get": httpx.get}).printed.split()
    assert url.startswith("http://127.0.0.1:")
    assert status == "200"
