"""Train the same agent with mini-agentic-rl and with TRL: points of held-out accuracy gained per hour.

python benchmarks/cpu_rl.py                                  # both, where TRL is in the same environment
python benchmarks/cpu_rl.py --peer-python other/bin/python   # TRL of another environment
python benchmarks/cpu_rl.py --seeds 0 1 2 --peer-python=     # this package alone, three seeds

The task is that of the README: answer "positive" or "negative" to a review, with one word. Both sides train LoRA r=8
on all linear layers of the same model with GRPO: the same prompts, reward, group size, learning rate, and number of
steps. Each training is a process of its own, and both take turns. The accuracy of both is measured by the same code:
greedy answers of transformers, on reviews of things that training does not have. The hours are those of training,
without loading the model and measuring. Joules are read from the RAPL counters of Linux, where they are readable: they
count the whole computer, so nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from output import add_model_options, deliver, make_parser, tell

OURS, PEER = "mini-agentic-rl", "TRL"
WORDS = [("positive", word) for word in ("great", "lovely", "superb", "a joy")]
WORDS += [("negative", word) for word in ("awful", "boring", "dreadful", "a mess")]
TRAINED = ("film", "hotel", "meal", "book")
HELD_OUT = ("trip", "game", "concert", "lamp", "garden", "bicycle", "lecture", "coat")
TASKS_PER_STEP, GROUP, NEW_TOKENS, LEARNING_RATE = 8, 8, 8, 4e-4
ENERGY = Path("/sys/class/powercap")


def reviews(things: Iterable[str]) -> list[dict[str, str]]:
    return [{"review": f"The {thing} was {word}.", "answer": answer} for thing in things for answer, word in WORDS]


def messages(task: dict[str, str]) -> list[dict[str, str]]:
    question = f"Is this review positive or negative? Answer with one word. Review: {task['review']}"
    return [{"role": "user", "content": question}]


def score(text: str, answer: str) -> float:
    return float(text.strip(" .").lower() == answer)


def train_ours(options: argparse.Namespace) -> float:
    """Train with this package. Return the seconds of training."""
    from openai import OpenAI

    from mini_agentic_rl import LLM, MiniGRPO, Trainer, llm_rollout
    from mini_agentic_rl.policy import LearnerSettings

    @llm_rollout
    def judge(task: dict[str, str], llm: LLM) -> float:
        client = OpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none")
        reply = client.chat.completions.create(
            model=llm.model,
            messages=messages(task),  # type: ignore[arg-type]
            **llm.sampling_parameters,
        )
        return score(reply.choices[0].message.content or "", task["answer"])

    algorithm = MiniGRPO(
        options.model,
        seed=options.seed,
        total_steps=options.steps,
        tasks_per_step=TASKS_PER_STEP,
        samples_per_prompt=GROUP,
        max_new_tokens=NEW_TOKENS,
        learner=LearnerSettings(learning_rate=LEARNING_RATE, schedule="constant"),
        load_options={"dtype": options.dtype, "device": options.device},
    )
    trainer = Trainer(algorithm=algorithm, n_runners=16, output_dir=options.folder / "run")
    trainer.fit(judge, reviews(TRAINED))
    summary = json.loads((options.folder / "run" / "summary.json").read_text(encoding="utf-8"))
    (options.folder / "run" / "adapter").rename(options.folder / "adapter")
    return float(summary["seconds"]["sampling"] + summary["seconds"]["learning"])


def train_peer(options: argparse.Namespace) -> float:
    """Train with TRL. Return the seconds of training."""
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from datasets import Dataset

    def reward(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
        return [score(completion[0]["content"], right) for completion, right in zip(completions, answer, strict=True)]

    config = GRPOConfig(
        output_dir=str(options.folder / "run"),
        per_device_train_batch_size=TASKS_PER_STEP * GROUP,
        num_generations=GROUP,
        max_completion_length=NEW_TOKENS,
        max_steps=options.steps,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        beta=0.0,
        bf16=options.dtype == "bfloat16",
        use_cpu=options.device == "cpu",
        gradient_checkpointing=False,  # the sequences are short, and recomputing them is slower
        model_init_kwargs={"dtype": options.dtype},
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
        seed=options.seed,
    )
    trainer = GRPOTrainer(
        model=options.model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": messages(task), **task} for task in reviews(TRAINED)]),
        processing_class=AutoTokenizer.from_pretrained(options.model),
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    started = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started
    trainer.save_model(str(options.folder / "adapter"))
    return seconds


def measure(options: argparse.Namespace, adapter: Path | None) -> float:
    """Return the accuracy of greedy answers to the held-out reviews, in [0, 1]."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype).to(options.device).eval()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    scores = []
    for task in reviews(HELD_OUT):
        prompt = tokenizer.apply_chat_template(
            messages(task), add_generation_prompt=True, return_tensors="pt", return_dict=True
        ).to(options.device)
        with torch.inference_mode():
            ids = model.generate(**prompt, max_new_tokens=NEW_TOKENS, do_sample=False)
        text = tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
        scores.append(score(text, task["answer"]))
    return statistics.fmean(scores)


def joules() -> float | None:
    """Return the energy counter of all packages in joules, or None where it cannot be read."""
    try:
        return sum(int((package / "energy_uj").read_text()) for package in ENERGY.glob("intel-rapl:?")) / 1e6 or None
    except OSError:
        return None


def run_side(side: str, python: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one side in a process of its own, and measure it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [python, __file__, "--child", side, "--folder", folder, "--seed", str(seed)]
        for name in ("model", "dtype", "device", "steps"):
            command += [f"--{name}", str(getattr(options, name))]
        before = joules()
        done = subprocess.run(command, capture_output=True, text=True)
        after = joules()
        if done.returncode:
            raise SystemExit(f"{side} failed:\n{done.stderr[-4000:]}")
        row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        accuracy = measure(options, Path(folder) / "adapter")
    gain = 100 * (accuracy - options.before)
    # A counter that started again during the run gives no figure.
    energy = after - before if before is not None and after is not None and after > before else None
    row |= {"side": side, "seed": seed, "before": options.before, "after": accuracy, "points": gain, "joules": energy}
    row["points_per_hour"] = gain / (row["seconds"] / 3600)
    tell(f"{side}, seed {seed}: {100 * accuracy:.1f} % after {row['seconds']:.0f} s")
    return row


def run_child(options: argparse.Namespace) -> None:
    """Train one side in this process, and print its figures as JSON."""
    import resource

    seconds = train_ours(options) if options.child == OURS else train_peer(options)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak}), flush=True)


def report(console: Console, result: dict[str, Any]) -> None:
    table = Table(title="Reviews: points of held-out accuracy gained per hour of training")
    for name in ("", "seed", "before, %", "after, %", "minutes", "points/hour", "kJ", "peak, GB"):
        table.add_column(name, justify="right" if name else "left")
    for row in result["rows"]:
        table.add_row(
            row["side"],
            str(row["seed"]),
            f"{100 * row['before']:.1f}",
            f"{100 * row['after']:.1f}",
            f"{row['seconds'] / 60:.1f}",
            f"{row['points_per_hour']:,.0f}",
            "" if row["joules"] is None else f"{row['joules'] / 1000:.1f}",
            f"{row['peak_bytes'] / 1e9:.2f}",
        )
    console.print(table)
    for name, value in result["ratios"].items():
        console.print(f"{name}: {value:.2f}", highlight=False)


def ratios(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return medians of one side over those of the other; above 1 is in our favour."""
    sides = {side: [row for row in rows if row["side"] == side] for side in (OURS, PEER)}
    if not all(sides.values()):
        return {}

    def median(side: str, name: str) -> float:
        return statistics.median(row[name] for row in sides[side])

    found = {"time, TRL / ours": median(PEER, "seconds") / median(OURS, "seconds")}
    found["memory, TRL / ours"] = median(PEER, "peak_bytes") / median(OURS, "peak_bytes")
    if median(PEER, "points_per_hour") > 0:
        found["points per hour, ours / TRL"] = median(OURS, "points_per_hour") / median(PEER, "points_per_hour")
    return found


def main() -> None:
    parser = make_parser(__doc__)
    add_model_options(parser)
    parser.add_argument("--steps", type=int, default=15, help="steps of 8 tasks with 8 answers each")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds; each trains both sides")
    parser.add_argument("--peer-python", default=sys.executable, help="Python with TRL; empty leaves TRL out")
    for name in ("--child", "--folder", "--seed"):
        parser.add_argument(name, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        options.folder, options.seed = Path(options.folder), int(options.seed)
        run_child(options)
        return
    from mini_agentic_rl.policy import resolve_device, resolve_dtype, resolve_model

    device = resolve_device(options.device)
    options.dtype = str(resolve_dtype(options.dtype, device)).removeprefix("torch.")
    options.device, options.model = str(device), str(resolve_model(options.model))
    options.before = measure(options, None)
    sides = [(OURS, sys.executable), *([(PEER, options.peer_python)] if options.peer_python else [])]
    rows = [run_side(side, python, seed, options) for seed in options.seeds for side, python in sides]
    deliver(options, {"steps": options.steps, "rows": rows, "ratios": ratios(rows)}, report)


if __name__ == "__main__":
    main()
