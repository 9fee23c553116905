"""Merge an adapter into its base, and check that the result behaves like base and adapter.

The check: base and adapter sample greedily after a few prompts, and their logits are kept. The merged model then reads
the same tokens, once in memory and once as loaded from disk. Its greedy tokens must be the same, and its logits equal
up to rounding.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, GenerationConfig, PreTrainedModel

from ...errors import UserError
from ...gateway import ChatRenderer, load_tokenizer
from ...metrics import ConsoleLogger
from ...policy import resolve_device
from ..models import RUN_FILE, run_file_of
from ..settings import MergeSettings, ResultSettings
from .base import Source, attach, find_source, load_base, merged, publish, size_of, target_folder

logger = logging.getLogger(__name__)

PROMPTS = (
    "What is 17 + 25? Explain in one sentence.",
    "Write a haiku about the sea.",
    "用一句话介绍一下北京。",
    "def fibonacci(n):",
)

_ERROR = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Largest difference of two logits, relative to the largest logit, that rounding to a number format explains."""


@dataclass(frozen=True)
class Observed:
    """A token sequence, and the logits that a model gave on it."""

    sequence: list[int]
    """Prompt, then the tokens sampled after it (none for a reward model)."""
    prompt_tokens: int
    logits_SV: torch.Tensor
    """Logits at the positions that predict a sampled token; the score [1, 1] of a reward model. Float32 on the CPU."""


@dataclass(frozen=True)
class Difference:
    """How two models differ on the same tokens."""

    tokens: int
    """Number of sampled tokens."""
    tokens_equal: int
    """Number of positions at which both models would sample the same token."""
    max_logit_difference: float
    largest_logit: float
    """Largest absolute logit of the first model."""
    widest_gap: float
    """Where the greedy tokens differ: the largest logit difference, under the first model, between the two tokens."""


@torch.no_grad()
def observe(model: Any, prompts: Sequence[Sequence[int]], tokens: int) -> list[Observed]:
    """Sample up to `tokens` tokens greedily after each prompt and keep the logits; with 0, only read the prompts."""
    observed: list[Observed] = []
    for prompt in prompts:
        sequence = list(prompt)
        if tokens:
            ids = torch.tensor([sequence], device=model.device)
            greedy = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0)
            output = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=greedy)
            sequence = output[0].tolist()
        observed.append(Observed(sequence, len(prompt), _logits(model, sequence, len(prompt))))
    return observed


@torch.no_grad()
def compare(model: Any, observed: Sequence[Observed]) -> Difference:
    """Return how a model differs from the one that was observed."""
    tokens = equal = 0
    difference = largest = gap = 0.0
    for before in observed:
        after_SV = _logits(model, before.sequence, before.prompt_tokens)
        difference = max(difference, float((after_SV - before.logits_SV).abs().max()))
        largest = max(largest, float(before.logits_SV.abs().max()))
        if len(before.sequence) == before.prompt_tokens:
            continue
        sampled_S, best_S = before.logits_SV.argmax(-1), after_SV.argmax(-1)
        rows_S = torch.arange(len(sampled_S))
        gap = max(gap, float((before.logits_SV[rows_S, sampled_S] - before.logits_SV[rows_S, best_S]).max()))
        tokens += len(sampled_S)
        equal += int((sampled_S == best_S).sum())
    return Difference(tokens, equal, difference, largest, gap)


def _logits(model: Any, sequence: Sequence[int], prompt_tokens: int) -> torch.Tensor:
    ids = torch.tensor([list(sequence)], device=model.device)
    logits: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    if logits.dim() == 3:  # of a language model [1, T, V], of a reward model [1, 1]
        logits = logits[0, prompt_tokens - 1 : -1]
    return logits.float().cpu()


def _require_same(model: Any, observed: Sequence[Observed], what: str) -> None:
    """Check that a model equals the observed one; greedy tokens may differ only where rounding decides."""
    difference = compare(model, observed)
    allowed = _ERROR[model.dtype] * max(1.0, difference.largest_logit)
    if difference.max_logit_difference <= allowed and difference.widest_gap <= 2 * allowed:
        return
    changed = difference.tokens - difference.tokens_equal
    raise UserError(
        f"{what} is not the same model: {changed} of {difference.tokens} greedy tokens differ, and logits by "
        f"{difference.max_logit_difference:.3g}, where rounding explains {allowed:.3g}. Nothing was written; "
        "look at the adapter and its base (without `check` it is written all the same)"
    )


def merge(settings: MergeSettings) -> dict[str, Any]:
    """Merge the adapter into its base and return a summary: output folder, size, and the result of the check.

    Raises:
        UserError: a setting cannot work, the adapter does not fit, or the merged model is not the same model.
    """
    source = find_source(settings.model, settings.adapter, "adapter")
    beside = settings.adapter or source.adapter
    with target_folder(settings.output_dir, beside, "-merged", overwrite=settings.overwrite) as target:
        return merge_into(source, target, settings)


def merge_into(source: Source, target: Path, settings: ResultSettings) -> dict[str, Any]:
    """Merge `source` and publish it as `target`.

    Raises:
        UserError: as `merge`.
    """
    started = time.monotonic()
    device = resolve_device(settings.device)
    with ConsoleLogger() as progress:
        progress.phase("merging", 5 if settings.check else 3)
        model, saved_dtype = load_base(source, device)
        dtype = saved_dtype if settings.dtype == "auto" else getattr(torch, settings.dtype)
        wrapped = attach(model, source)
        tokenizer = load_tokenizer(source.tokenizer)
        progress.advance()
        observed: list[Observed] = []
        effect: float | None = None
        if settings.check:
            renderer = ChatRenderer(tokenizer)
            prompts = [renderer.render([{"role": "user", "content": text}]) for text in PROMPTS]
            observed = observe(wrapped, prompts, 0 if source.scores else settings.check_tokens)
            with wrapped.disable_adapter():
                effect = compare(wrapped, observed).max_logit_difference
            if effect == 0.0:
                logger.warning("the adapter changes nothing: was it trained?")
            progress.advance()
        working_dtype = model.dtype
        whole: PreTrainedModel | None = merged(wrapped)
        del model, wrapped
        if settings.check:
            _require_same(whole, observed, "the merged model in memory")
        progress.advance()
        difference: Difference | None = None

        def write(folder: Path) -> None:
            nonlocal whole, difference
            rounded: list[Observed] = []
            if settings.check:
                rounded = _rounded(whole, dtype, observed)
            _save(whole, folder, dtype, settings.max_shard_size)
            whole = None  # room for the model that is read back
            tokenizer.save_pretrained(folder)
            carry_run_file(source.adapter, folder)
            progress.advance()
            if settings.check:
                architecture = AutoModelForSequenceClassification if source.scores else AutoModelForCausalLM
                written = architecture.from_pretrained(folder, dtype=working_dtype).to(device).eval()
                _require_same(written, rounded, "what was written")
                difference = compare(written, observed)
                progress.advance()

        publish(target, write)
    half = dtype != torch.float32 and not source.scores  # the base of a reward adapter has a random head
    if half and difference is not None and effect and difference.max_logit_difference > effect / 2:
        logger.warning(
            "rounding to %s takes away much of what this adapter changes: `dtype=float32` keeps all of it",
            str(dtype).removeprefix("torch."),
        )
    return {
        "output_dir": str(target),
        "format": "merged",
        "base": source.base,
        "adapter": str(source.adapter),
        "reward_model": source.scores,
        "dtype": str(dtype).removeprefix("torch."),
        "bytes": size_of(target),
        "adapter_effect": effect,
        "check": None if difference is None else asdict(difference),
        "seconds": time.monotonic() - started,
    }


@torch.no_grad()
def _rounded(model: Any, dtype: torch.dtype, observed: Sequence[Observed]) -> list[Observed]:
    """Round the weights to the format that they are saved in, and return the model's logits then."""
    for parameter in model.parameters():  # not the buffers: those are computed anew when a model is loaded
        parameter.data.copy_(parameter.data.to(dtype))
    return [replace(item, logits_SV=_logits(model, item.sequence, item.prompt_tokens)) for item in observed]


def _save(model: Any, folder: Path, dtype: torch.dtype, max_shard_size: str) -> None:
    model.to(dtype)
    model.config.dtype = dtype
    model.save_pretrained(folder, max_shard_size=max_shard_size)


def carry_run_file(adapter: Path, folder: Path) -> None:
    """Copy the run configuration of an adapter: the reward service reads from it where a score is taken."""
    run_file = run_file_of(adapter)
    if run_file is not None:
        shutil.copyfile(run_file, folder / RUN_FILE)
