"""The command lines of docs/ that a reader can follow from one to the next: what each leaves, and what it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from mini_agentic_rl.policy import embedded_path, load_model
from pages.shell import run_words, shell_line
from pages.snippets import ROOT
from processes import free_port

COMMANDS = "docs/commands.md"
POST_TRAINING = "docs/post-training.md"
SMALL = ("--max-samples", 8, "--num-epochs", 1, "--batch-size", 4, "--lora-r", 2)
RL = (
    *("--sft-examples", 2, "--total-steps", 1, "--tasks-per-step", 1, "--samples-per-prompt", 2, "--max-samples", 4),
    *("--eval-size", 2, "--max-new-tokens", 4, "--cache-mib", 64),
)


def post(port: int, path: str, body: dict) -> dict:
    status, printed, errors = run_words(["curl", f"http://127.0.0.1:{port}/{path}", "-d", json.dumps(body)])
    assert status == 0, errors
    return json.loads(printed)


def raw_preferences(folder: Path, count: int) -> None:
    rows = [{"question": f"Is {n} even?", "response_j": "yes" * (1 + n), "response_k": "no"} for n in range(count)]
    (folder / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def base_of(folder) -> str:
    return json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]


def test_the_whole_path_from_imitation_to_one_merged_model(here):
    out = here / "outputs"
    raw_preferences(here, 8)

    shell_line(POST_TRAINING, "sft --dataset arithmetic --max-samples").run(*SMALL)
    assert "8 of 8 records written" in shell_line(POST_TRAINING, "convert-dpo --input raw.jsonl").run()
    shell_line(POST_TRAINING, "dpo --model outputs/sft").run(*SMALL)
    shell_line(POST_TRAINING, "reward --dataset pairs.jsonl").run(*SMALL)
    for folder in ("sft", "dpo", "judge"):
        assert base_of(out / folder) == str(embedded_path()), "still one adapter on one base"
    judge_answers()

    shell_line(POST_TRAINING, "train --model outputs/sft --algorithm dapo").run(*RL, "--checkpoint-every", 1)
    assert base_of(out / "rl/adapter") == str(embedded_path())
    (out / "rl/report.html").unlink()
    shell_line(COMMANDS, "report outputs/math-agent").run(replace={"outputs/math-agent": "outputs/rl"})
    table = (ROOT / COMMANDS).read_text(encoding="utf-8").partition("## The run folder")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(names) == 8
    for name in names:
        assert list((out / "rl").glob(name.rstrip("/").replace("_N", "_*"))), name
    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(embedded_path()), out / "rl/adapter")  # plain peft

    printed = shell_line(POST_TRAINING, "merge --adapter outputs/rl/adapter").run()
    same, of = map(int, re.findall(r"checked: (\d+) of (\d+) greedy tokens the same", printed)[0])
    assert same == of > 0
    AutoModelForCausalLM.from_pretrained(out / "merged")
    assert AutoTokenizer.from_pretrained(out / "merged").chat_template

    shell_line(POST_TRAINING, "merge --adapter outputs/sft").run()
    AutoModelForCausalLM.from_pretrained(out / "sft-merged")
    shell_line(POST_TRAINING, "--merge-lora true").run("--overwrite")
    shell_line(POST_TRAINING, "--base-name Qwen/Qwen3-0.6B").run("--output-dir", "outputs/alone")
    assert base_of(out / "alone") == "Qwen/Qwen3-0.6B"


def judge_answers() -> None:
    """Serve the reward model, and ask it what docs/reward-service.md asks."""
    port, answers = free_port(), {}
    page = "docs/reward-service.md"

    def read() -> None:
        for path in ("score -d", "score-pair -d"):
            line = shell_line(page, f"curl localhost:8001/{path}")
            answers[path] = json.loads(line.run(replace={"localhost:8001": f"127.0.0.1:{port}"}))
        answers["score/batch"] = post(port, "score/batch", {"items": [{"prompt": "q", "response": "a"}] * 2})
        pair = {"prompt": "q", "chosen": "a", "rejected": "b"}
        answers["score-pair/batch"] = post(port, "score-pair/batch", {"items": [pair] * 2})

    shell_line(POST_TRAINING, "score-server --model outputs/judge").serve(read, port=port)
    assert set(answers["score -d"]) == {"score", "tokens", "truncated"}
    pair = answers["score-pair -d"]
    assert set(pair) == {"score_a", "score_b", "margin", "preferred", "truncated"}
    assert pair["margin"] == pytest.approx(pair["score_a"] - pair["score_b"])
    assert [len(answers["score/batch"][name]) for name in ("scores", "tokens", "truncated")] == [2, 2, 2]
    assert len(answers["score-pair/batch"]["results"]) == 2


def test_a_run_is_repeated_from_its_settings_measured_and_talked_to(here):
    shell_line(COMMANDS, "train --output-dir outputs/mine").run(*RL)
    shell_line(COMMANDS, "train --config outputs/mine/config.json").run()
    mine, other = (json.loads((here / "outputs" / name / "config.json").read_text()) for name in ("mine", "seed-1"))
    assert {name for name in mine if mine[name] != other[name]} == {"seed", "output_dir"}

    trained = {"outputs/math-agent": "outputs/mine"}  # what `make train` leaves
    few = ("--size", 2, "--max-new-tokens", 4)
    assert "of 2" in shell_line(COMMANDS, "eval --adapter outputs/math-agent/adapter --size").run(*few, replace=trained)
    shown = shell_line(COMMANDS, "--samples 8").run(*few, replace=trained)
    assert "pass@1" in shown
    assert "pass@8" in shown
    (here / "problems.jsonl").write_text('{"question": "What is 1 + 1?", "answer": "2"}\n' * 3)
    assert "of 3" in shell_line(COMMANDS, "eval --dataset problems.jsonl").run("--max-new-tokens", 4)
    talk = shell_line(COMMANDS, "chat --adapter outputs/math-agent/adapter")
    assert talk.run("--max-new-tokens", 4, replace=trained, typed="Hello\n/quit\n").strip()

    assert shell_line(COMMANDS, "models pull").run().strip() == str(embedded_path())
    assert str(embedded_path()) in shell_line(COMMANDS, "models list").run()
    assert shell_line(COMMANDS, "agentic-rl version").run().startswith("mini-agentic-rl ")
    planned = shell_line(COMMANDS, "plan --model Qwen").run(replace={"Qwen/Qwen2.5-1.5B-Instruct": "embedded"})
    assert "peak" in planned.lower()


def test_the_scripts_lead_from_imitation_to_a_conversation(here):
    page = "docs/rl-training-tool.md"
    shell_line(page, "scripts/train_sft.py").run("--lora_r", 2, "--batch-size", 5)
    sizes = ("--max_new_tokens", 4, "--max-samples", 4, "--batch_size", 4, "--total_epochs", 2)
    shell_line(page, "scripts/train_gsm8k_agent.py").run(*sizes)
    assert sorted(path.name for path in (here / "outputs/rl").glob("epoch_*")) == ["epoch_1", "epoch_2"]
    load_model("outputs/sft/epoch_1")
    talk = shell_line(page, "scripts/test_interactive.py")
    assert talk.run("--max_new_tokens", 4, typed="Hello\n/quit\n").strip()


def test_the_scripts_make_a_reward_model_of_preferences_and_serve_it(here):
    page, port, scores = "docs/rl-training-tool.md", free_port(), []
    raw_preferences(here, 12)
    shell_line(page, "scripts/convert_dpo_format.py").run()
    assert len((here / "converted.jsonl").read_text().splitlines()) == 12
    shell_line(page, "scripts/reward_modeling.py").run("--max_steps", 2, "--per_device_train_batch_size", 4)

    def read() -> None:
        scores.append(post(port, "score", {"prompt": "Is 2 even?", "response": "yes"})["score"])

    shell_line(page, "scripts/inference_api.py").serve(read, port=port)
    assert isinstance(scores[0], float)
