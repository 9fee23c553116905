"""A model is trained by a tool, as an agent would do it: look at the data, imitate, reinforce, measure.

python examples/rl_training_example.py --max-samples 100
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mini_agentic_rl.tools import RLTrainingTool


def use(tool: RLTrainingTool, parameters: dict[str, Any]) -> dict[str, Any]:
    """What the tool answers; the example ends where it cannot do what was asked."""
    answer = json.loads(tool.run(parameters))
    if not answer["success"]:
        raise SystemExit(f"{parameters['action']}: {answer['message']}")
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="embedded, a folder, or a Hugging Face id")
    parser.add_argument("--dataset", default="arithmetic:1,2", help="arithmetic, gsm_symbolic, gsm8k, or a file")
    parser.add_argument("--max-samples", type=int, default=100, help="rows of the data set")
    parser.add_argument("--num-epochs", type=int, default=1, help="passes over them, in each training")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--output-dir", default="outputs/rl-training-example", help="folder for the results")
    options = parser.parse_args()

    # An agent may choose any name: a folder of models outside the tool's own has to be named by the program. The tool
    # reads relative paths from its own folder.
    folder = Path(options.model).resolve()
    model, folders = (str(folder), [folder]) if folder.is_dir() else (options.model, [])
    tool = RLTrainingTool(options.output_dir, model_folders=folders)
    rows = {"dataset": options.dataset, "max_samples": options.max_samples}
    found = use(tool, {"action": "load_dataset", "format": "rl", **rows})
    print(f"{found['dataset_size']} tasks with {', '.join(found['sample_keys'])}")

    training = {**rows, "num_epochs": options.num_epochs, "overwrite": True}
    use(tool, {"action": "train", "algorithm": "sft", "model_name": model, "output_dir": "sft", **training})
    reinforcement = {"algorithm": "grpo", "model_name": "sft", "max_new_tokens": options.max_new_tokens}
    use(tool, {"action": "train", "output_dir": "grpo", **reinforcement, **training})

    for name in (model, "sft", "grpo"):
        measured = use(
            tool, {"action": "evaluate", "model_name": name, **rows, "max_new_tokens": options.max_new_tokens}
        )
        print(f"{name:>10}: {measured['accuracy']:6.1%} of {measured['count']}")


if __name__ == "__main__":
    main()
