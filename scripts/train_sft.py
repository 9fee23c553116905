"""Supervised fine-tuning on demonstrations: the command `mini-agentic-rl sft`.

    python scripts/train_sft.py --model_path Qwen/Qwen2.5-0.5B --dataset gsm8k --num_epochs 3 --output_dir outputs/sft
    python scripts/train_sft.py --max_samples 10 --num_epochs 1

Without `--dataset` it trains on GSM8K where that can be had, else on generated arithmetic: the conversations that the
agent of `train_gsm8k_agent.py` is to have, with its calculator. `--dataset text:gsm8k` imitates written solutions.
"""

from mini_agentic_rl.rl import usual_dataset

from mini_agentic_rl.integrations.hello_agents.script import run_script

USUAL = "gsm8k where it can be had, else arithmetic"


def prepare(options: dict[str, str]) -> dict[str, str]:
    """The data set, where none is named."""
    return {} if "dataset" in options else {"dataset": usual_dataset()}


if __name__ == "__main__":
    run_script("sft", names={"model_path": "model"}, computed={"dataset": USUAL}, prepare=prepare)
