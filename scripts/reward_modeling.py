"""Train a reward model on preferences: the command `mini-agentic-rl reward`.

python scripts/reward_modeling.py --dataset_name converted.jsonl --model_name_or_path Qwen/Qwen2.5-0.5B-Instruct
accelerate launch scripts/reward_modeling.py --dataset_name converted.jsonl --output_dir outputs/reward-model
"""

from mini_agentic_rl.integrations.hello_agents.script import run_script

if __name__ == "__main__":
    run_script(
        "reward",
        names={
            "dataset_name": "dataset",
            "model_name_or_path": "model",
            "model_path": "model",
            "num_train_epochs": "num_epochs",
            "per_device_train_batch_size": "batch_size",
            "use_peft": "use_lora",
        },
    )
