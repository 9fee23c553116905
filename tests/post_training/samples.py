"""Small examples of each form, and settings for runs of a second."""

from __future__ import annotations

from mini_agentic_rl.post_training import PostTrainingSettings

WORDS = ("apples", "answer", "weather", "result", "system", "expression", "tool", "many", "name", "assistant")
QUICK = {
    "device": "cpu",
    "dtype": "float32",
    "batch_size": 4,
    "learning_rate": 1e-2,
    "lora_r": 4,
    "lora_alpha": 8,
    "max_length": 256,
    "logging_steps": 1,
    "console": False,
    "eval_fraction": 0.0,
}


def conversations(count: int = 12) -> list[dict]:
    """Ask for a word, get it back."""
    return [
        {"messages": [{"role": "user", "content": f"Say {word}"}, {"role": "assistant", "content": f"The {word}"}]}
        for word in (WORDS[index % len(WORDS)] for index in range(count))
    ]


def pairs(count: int = 12) -> list[dict]:
    """The word that was asked for is better than another."""
    return [
        {
            "prompt": [{"role": "user", "content": f"Say {word} {index}"}],
            "chosen": [{"role": "assistant", "content": f"The {word}"}],
            "rejected": [{"role": "assistant", "content": "What weather"}],
        }
        for index, word in ((index, WORDS[index % len(WORDS)]) for index in range(count))
    ]


def verdicts(count: int = 12) -> list[dict]:
    """Answers to those questions, each good or bad."""
    return [
        {
            "prompt": pair["prompt"],
            "completion": pair["chosen"] if index % 2 else pair["rejected"],
            "label": bool(index % 2),
        }
        for index, pair in enumerate(pairs(count))
    ]


def quick(settings_class: type[PostTrainingSettings], model: str, output_dir, **changes) -> PostTrainingSettings:
    """Settings of a run of a second."""
    return settings_class(**{**QUICK, "model": str(model), "output_dir": output_dir, **changes})
