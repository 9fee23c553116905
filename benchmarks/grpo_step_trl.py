"""The other side of `grpo_step.py`: the same step by TRL's GRPOTrainer. Prints one line of JSON."""

from __future__ import annotations

import resource
import statistics
import time
from typing import Any

import torch
import trl.trainer.grpo_trainer as grpo_trainer
from peft import LoraConfig
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from datasets import Dataset
from workload import TEMPLATE, child_parser, conversations, lookup, print_result, tool_result, workload_of


class Timer(TrainerCallback):
    """Seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._started = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._started)


class Timed(GRPOTrainer):
    """Adds up the seconds of sampling, step by step."""

    sampling: list[float]

    def _generate(self, prompts: Any) -> Any:
        started = time.perf_counter()
        found = super()._generate(prompts)
        self.sampling.append(time.perf_counter() - started)
        return found


def main() -> None:
    parser = child_parser(__doc__ or "")
    parser.add_argument("--batch", type=int, default=8, help="sequences of a forward and backward pass")
    parser.add_argument("--no-checkpointing", action="store_true", help="keep activations (TRL recomputes by default)")
    parser.add_argument("--folder", required=True, help="where TRL may write")
    options = parser.parse_args()
    work = workload_of(options)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.chat_template = TEMPLATE
    rows = [{"prompt": messages} for messages in conversations(tokenizer, work)]
    steps = options.warmup + options.steps
    total = work.tasks * work.samples
    batch = min(options.batch, total)
    tools = None
    if work.turns > 1:
        result = tool_result(tokenizer, work)
        tools = [lookup]
        # The untrained model calls no tool by itself: every answer is read as a call, so that the loop runs its turns.
        call = {"type": "function", "function": {"name": "lookup", "arguments": {"key": result}}}
        reply = {"role": "assistant", "content": "", "tool_calls": [call]}
        tokenizer.response_template = {}
        grpo_trainer.parse_response = lambda *_, **__: dict(reply)
        grpo_trainer.add_response_schema = lambda processing_class: processing_class
    whole = work.turns * work.new_tokens + (work.turns - 1) * work.tool_tokens
    config = GRPOConfig(
        output_dir=options.folder,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=total // batch,
        num_generations=work.samples,
        max_completion_length=whole,
        max_tool_calling_iterations=work.turns - 1 or None,
        generation_kwargs={"max_new_tokens": work.new_tokens, "min_new_tokens": work.new_tokens},
        max_steps=steps,
        learning_rate=1e-6,
        beta=0.0,
        bf16=options.dtype == "bfloat16",
        use_cpu=options.device == "cpu",
        gradient_checkpointing=not options.no_checkpointing,
        model_init_kwargs={"dtype": options.dtype},
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
        seed=0,
    )

    def reward(completions: list[Any], **_: Any) -> list[float]:
        return [float(index % 2) for index in range(len(completions))]

    timer = Timer()
    trainer = Timed(
        model=options.model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[timer],
        tools=tools,
    )
    trainer.sampling = []
    trainer.train()
    cuda = options.device.startswith("cuda")
    step = statistics.median(timer.seconds[options.warmup :])
    sampling = statistics.median(trainer.sampling[options.warmup :])
    print_result(
        work,
        step=step,
        sampling=sampling,
        learning=step - sampling,
        computed_tokens=total * (work.prompt_tokens + whole),
        peak_bytes=torch.cuda.max_memory_allocated()
        if cuda
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


if __name__ == "__main__":
    main()
