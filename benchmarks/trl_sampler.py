"""TRL's GRPOTrainer, sampling by itself and with this package's engine: the seconds of its sampling, both in one run.

    python benchmarks/trl_sampler.py --model embedded --prompts 4 --samples 8 --tokens 64

Both sides train the same LoRA on the same prompts with a reward that costs nothing, in float32 as TRL loads a model;
answers end where the model ends them, so tokens a second are compared. A first step is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from typing import Any

import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from datasets import Dataset
from mini_agentic_rl.policy import resolve_model
from mini_agentic_rl.samplers import TRLSampler


class Timed(GRPOTrainer):
    """Keeps the seconds and the tokens of each sampling."""

    def _generate(self, prompts: Any) -> Any:
        started = time.perf_counter()
        found = super()._generate(prompts)
        self.sampling.append((time.perf_counter() - started, sum(map(len, found[1]))))
        return found


def tokens_per_second(options: argparse.Namespace, sampler: TRLSampler | None) -> float:
    """Return the median over the steps after the first."""
    folder = resolve_model(options.model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [
        {"prompt": [{"role": "user", "content": f"Tell a long story about {number} travellers."}]}
        for number in range(2, 2 + options.prompts)
    ]
    batch = options.prompts * options.samples
    with tempfile.TemporaryDirectory() as output, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = GRPOConfig(
            output_dir=output,
            per_device_train_batch_size=batch,
            num_generations=options.samples,
            max_completion_length=options.tokens,
            max_steps=options.steps + 1,
            learning_rate=1e-5,
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Timed(
            AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, options.dtype)),
            reward_funcs=lambda completions, **_: [float(len(said[-1]["content"])) for said in completions],
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
            rollout_func=sampler,
        )
        trainer.sampling = []
        trainer.train()
    return statistics.median(tokens / seconds for seconds, tokens in trainer.sampling[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    options = parser.parse_args()
    theirs = tokens_per_second(options, None)
    sampler = TRLSampler()
    ours = tokens_per_second(options, sampler)
    sampler.close()
    print(f"TRL by itself: {theirs:.0f} tokens/s; with this engine: {ours:.0f} tokens/s; {ours / theirs:.2f} times")


if __name__ == "__main__":
    main()
