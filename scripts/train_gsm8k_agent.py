"""Reinforcement learning of the math agent: the command `mini-agentic-rl train`, without its warm-up.

    python scripts/train_gsm8k_agent.py --model_path outputs/sft --dataset gsm8k --samples_per_prompt 4 \\
        --max_new_tokens 256 --total_epochs 3 --output_dir outputs/rl
    python scripts/train_gsm8k_agent.py --max_samples 5 --samples_per_prompt 2 --max_new_tokens 128 --total_epochs 1

Each optimizer step draws `--batch_size` x `--gradient_accumulation_steps` tasks (4 x 1 without them) and runs each of
them `--samples_per_prompt` times. At the end of every epoch the adapter is written to `epoch_N/` in the output folder.
Without `--dataset` it trains on GSM8K where that can be had, else on generated arithmetic.
"""

from mini_agentic_rl.rl import usual_dataset

from mini_agentic_rl.integrations.hello_agents.script import number, run_script


def prepare(options: dict[str, str]) -> dict[str, str]:
    """The options of `train` that follow from the others."""
    tasks = number(options, "batch_size", 4) * number(options, "gradient_accumulation_steps", 1)
    found = {"tasks_per_step": str(tasks)}
    if "max_samples" in options:  # a short run is not measured for longer than it trains
        found["eval_size"] = str(min(200, number(options, "max_samples", 200)))
    if "dataset" not in options:
        found["dataset"] = usual_dataset()
    return found


if __name__ == "__main__":
    run_script(
        "train",
        names={"model_path": "model"},
        further={
            "batch_size": "Tasks of a step are this, 4 by default, times --gradient_accumulation_steps.",
            "gradient_accumulation_steps": "See --batch_size; 1 by default.",
        },
        defaults={"sft_examples": "0", "total_epochs": "1", "samples_per_prompt": "4", "output_dir": "outputs/rl"},
        computed={
            "tasks_per_step": "4, or what --batch_size says",
            "eval_size": "200, or less with --max_samples",
            "dataset": "gsm8k where it can be had, else arithmetic",
        },
        prepare=prepare,
    )
