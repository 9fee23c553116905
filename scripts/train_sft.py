"""Supervised fine-tuning on demonstrations: the command `mini-agentic-rl sft`.

    python scripts/train_sft.py --model_path Qwen/Qwen2.5-0.5B --dataset gsm8k --num_epochs 3 --output_dir outputs/sft
    python scripts/train_sft.py --max_samples 10 --num_epochs 1

Without `--dataset` it trains on GSM8K where that can be had, else on generated arithmetic, worked as the agent of
`train_gsm8k_agent.py` works.
"""

from mini_agentic_rl.cli.script import run_script
from mini_agentic_rl.rl.datasets import STAND_IN, usual_dataset

WORKED_BY_THE_AGENT = "mini_agentic_rl.recipes.math:calculator"


def prepare(options: dict[str, str]) -> dict[str, str]:
    """The data set, where none is named."""
    if "dataset" in options:
        return {}
    usual = usual_dataset()
    return {"dataset": WORKED_BY_THE_AGENT if usual == STAND_IN else usual}


if __name__ == "__main__":
    run_script("sft", names={"model_path": "model"}, prepare=prepare)
