"""The examples run as a person runs them."""

from __future__ import annotations

import itertools
import json
import runpy
import shutil
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from mini_agentic_rl.policy import DEFAULT_ADAPTER, LoraSettings, load_model
from mini_agentic_rl.policy.load import save_weights
from mini_agentic_rl.tokens import SamplingParams
from processes import run_python
from tiny import tiny_tokenizer

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.fixture(scope="module")
def brief(tiny_folder, tmp_path_factory):
    """Return the folder of a tiny model whose answers have a few tokens, since a third of the tokens end them."""
    folder = shutil.copytree(tiny_folder, tmp_path_factory.mktemp("models") / "brief")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    ends = [tiny_tokenizer().eos_token_id, *range(20, 120)]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return str(folder)


def _run(name, *options):
    """Return what an example prints."""
    return run_python(EXAMPLES / name, *options)[0]


def test_an_agent_is_trained_and_then_measured(brief, tmp_path):
    run = tmp_path / "run"
    size = ("--cot", "--iterations", "1", "--tasks-per-step", "1", "--eval-size", "2", "--sft-examples", "2")
    printed = _run("train_math_agent.py", "--model", brief, *size, "--seed", "1", "--output-dir", str(run))
    rows = [line.split(":") for line in printed.splitlines()[-3:]]
    assert [name.strip() for name, _ in rows] == ["before", "after SFT", "after RL"]
    assert all(accuracy.endswith("of 2") for _, accuracy in rows)
    adapter = run / "adapter"
    before = adapter.joinpath("adapter_model.safetensors").read_bytes()

    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text('{"question": "What is 1 + 1?", "answer": "2"}\n')
    options = ("--adapter", str(adapter), "--dataset", str(tasks), "--size", "1", "--samples", "2")
    measured = _run("benchmark.py", "--model", brief, *options)
    assert "pass@1" in measured
    assert "of 2" in measured
    assert "pass@2" in measured
    assert adapter.joinpath("adapter_model.safetensors").read_bytes() == before


def test_a_server_learns_from_its_use(brief, tmp_path):
    size = ("--rounds", "2", "--samples", "2", "--max-tokens", "4")
    printed = _run("learn_from_use.py", "--model", brief, "--folder", str(tmp_path / "use"), *size)
    rounds = [line for line in printed.splitlines() if line.startswith("round")]
    assert len(rounds) == 2
    assert (tmp_path / "use" / "sessions.db").is_file()


def test_the_gaia_agent_is_trained_on_a_local_copy(brief, tmp_path):
    copy = tmp_path / "copy"
    copy.mkdir()
    records = [
        {"task_id": f"t{number}", "Question": f"What is {number} + 1?", "Level": 1, "Final answer": str(number + 1)}
        for number in range(12)
    ]
    copy.joinpath("metadata.jsonl").write_text("\n".join(map(json.dumps, records)))
    tmp_path.joinpath("my_search.py").write_text("def search(query):\n    return query\n")
    size = ("--steps", "1", "--tasks-per-step", "1", "--samples-per-prompt", "2", "--max-turns", "2")
    printed, progress = run_python(
        EXAMPLES / "train_gaia_agent.py",
        *("--data-dir", str(copy), "--model", brief, "--max-new-tokens", "4", "--search", "my_search:search"),
        *(*size, "--output-dir", str(tmp_path / "run")),
        environment={"PYTHONPATH": str(tmp_path)},
    )
    measured = [line.split(":")[0].strip() for line in printed.splitlines() if line.endswith("of 1")]
    assert measured == ["before", "after RL"]
    assert 0 < progress.index("evaluation: after RL: 1 done in") < progress.index("to use what was trained")
    assert (tmp_path / "run" / "adapter" / "adapter_model.safetensors").is_file()


def test_grpo_fits_on_a_page_and_trains_from_there(tiny_folder, monkeypatch, capsys):
    page = EXAMPLES / "grpo_from_scratch.py"
    assert len(page.read_text().splitlines()) <= 150
    scratch = runpy.run_path(str(page))
    answers = itertools.count()
    seen, step = [], scratch["step"]

    def decode(self, ids, **_):
        """Return a call of the calculator for every third answer: a tiny model would never call it."""
        return f"{len(ids) % 5}" if next(answers) % 3 else "<calc>1 + 1</calc>"

    def often_ended(**params):
        return SamplingParams(**params, logit_bias={tiny_tokenizer().eos_token_id: 5.0})

    def kept(learner, rollouts, advantages):
        before = [p.detach().clone() for p in learner.parameters]
        step(learner, rollouts, advantages)
        changed = any(not torch.equal(old, new) for old, new in zip(before, learner.parameters, strict=True))
        seen.append((rollouts, advantages, changed))

    monkeypatch.setattr(PreTrainedTokenizerFast, "decode", decode)
    monkeypatch.setitem(scratch["main"].__globals__, "SamplingParams", often_ended)
    monkeypatch.setitem(scratch["main"].__globals__, "step", kept)
    monkeypatch.setitem(scratch["main"].__globals__, "reward", lambda said, answer: float(len(said)) + len(said[-1]))
    options = ("--steps", "2", "--questions", "1", "--samples", "4", "--max-new-tokens", "8")
    monkeypatch.setattr("sys.argv", [str(page), "--model", tiny_folder, *options])
    scratch["main"]()
    told = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in told] == ["step 1", "step 2"]
    assert any(len(rollout.calls) > 1 for rollouts, *_ in seen for rollout in rollouts)
    for rollouts, advantages, changed in seen:
        assert changed
        assert len(rollouts) == len(advantages) == 4
        assert sum(advantages) == pytest.approx(0, abs=1e-6)
        for rollout in rollouts:  # each call continues the one before, token by token
            for earlier, later in itertools.pairwise(rollout.calls):
                whole = [*earlier.prompt_ids, *earlier.output_ids]
                assert list(later.prompt_ids[: len(whole)]) == whole
                assert len(later.prompt_ids) > len(whole)


@pytest.mark.parametrize("both", [False, True])
def test_an_assistant_is_trained_against_a_simulated_user(both, brief, tmp_path):
    run = tmp_path / "run"
    size = ("--steps", "1", "--tasks-per-step", "1", "--eval-size", "1", "--sft-examples", "1" if both else "0")
    options = ["--model", brief, *size, "--output-dir", str(run)]
    if both:
        options.append("--train-both")
    else:  # against a partner that was trained before
        save_weights(load_model(brief, lora=LoraSettings(r=2)), tmp_path / "user", DEFAULT_ADAPTER)
        options += ["--user-adapter", str(tmp_path / "user")]
    printed, progress = run_python(EXAMPLES / "train_with_user_simulator.py", *options)
    measured = [line.split(":")[0].strip() for line in printed.splitlines() if line.endswith("of 1")]
    assert measured == (["before", "after SFT", "after RL"] if both else ["before", "after RL"])
    assert "evaluation: after RL: 1 done in" in progress
    folders = [run / "adapters" / "assistant", run / "adapters" / "user"] if both else [run / "adapter"]
    for folder in folders:
        assert (folder / "adapter_model.safetensors").is_file()


def test_a_model_is_trained_by_the_tool_of_an_agent(brief, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(brief).parent)
    size = ("--dataset", "arithmetic:1", "--max-samples", "2", "--max-new-tokens", "4")
    printed = _run("rl_training_example.py", "--model", Path(brief).name, *size, "--output-dir", str(tmp_path / "run"))
    measured = [line for line in printed.splitlines() if line.endswith("of 2")]
    assert [line.rpartition(":")[0].strip() for line in measured] == [str(Path(brief).resolve()), "sft", "grpo"]
