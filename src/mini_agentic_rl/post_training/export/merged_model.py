"""An adapter added into its base: a checkpoint of its own, for plain transformers, for vLLM, for all that read one.

    W' = W + sum over adapters of (alpha / r) B A

The sum is made in float32 where memory allows and rounded once, to the format that the base was saved in. The sum has
been compared with base and adapters, and what is published was read back from disk and compared with the rounded sum:
`check.py`.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from ...gateway import load_tokenizer
from ...metrics import ConsoleLogger
from ...policy import resolve_device
from ..models import RUN_FILE, run_file_of
from .base import Source, attach, find_source, load_base, merged
from .check import PROMPTS, Difference, Observed, compare, observe, observe_again, prompt_ids, require_same
from .settings import MergeSettings, ResultSettings
from .target import publish, size_of, target_folder

logger = logging.getLogger(__name__)

_ERROR = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Relative difference of logits that computing in a format makes."""


def merge(settings: MergeSettings) -> dict[str, Any]:
    """Merge the adapters into their base and return what was done: where it is, its size, and how it compares.

    Raises:
        UserError: a setting cannot work, the adapter does not fit, or the merged model is not the same model.
    """
    source = find_source(settings.model, settings.adapter, "adapter")
    with target_folder(settings.output_dir, settings.adapter[-1], "-merged", overwrite=settings.overwrite) as target:
        return merge_into(source, target, settings)


def merge_into(source: Source, target: Path, settings: ResultSettings) -> dict[str, Any]:
    """Merge `source` and publish it as `target`.

    Raises:
        UserError: as `merge`.
    """
    started = time.monotonic()
    with ConsoleLogger() as progress:
        progress.phase("merging", 5 if settings.check else 3)
        model, saved = load_base(source, resolve_device(settings.device))
        kept = saved if settings.dtype == "auto" else getattr(torch, settings.dtype)
        wrapped, names = attach(model, source)
        tokenizer = load_tokenizer(source.tokenizer)
        progress.advance()
        prompts = prompt_ids(tokenizer, settings.check_prompt or PROMPTS) if settings.check else []
        observed = observe(wrapped, prompts, settings.check_tokens, scores=source.scores)
        effect = _effect(wrapped, observed, source)
        if settings.check:
            progress.advance()
        working = model.dtype
        held = [merged(wrapped, names)]
        del model, wrapped
        if settings.check:
            _require_same(held[0], observed, source, "the merged model in memory")
        progress.advance()
        found: list[Difference] = []

        def write(folder: Path) -> None:
            rounded = _rounded(held[0], kept, observed, source) if settings.check else observed
            _save(held.pop(), folder, kept, settings.max_shard_size)
            tokenizer.save_pretrained(folder)
            carry_run_file(source.adapters, folder)
            progress.advance()
            if settings.check:
                whole = _read_back(folder, rounded, source, working, resolve_device(settings.device))
                found.append(compare(whole, observed, scores=source.scores))
                progress.advance()

        publish(target, write)
    half = kept != torch.float32 and not source.scores  # a score's adapter is compared with a head of chance
    if half and found and effect and found[0].max_logit_difference > effect / 2:
        logger.warning(
            "rounding to %s takes away much of what this adapter changes: `dtype=float32` keeps all of it",
            str(kept).removeprefix("torch."),
        )
    return {
        "output_dir": str(target),
        "format": "merged",
        "base": source.base,
        "adapters": [str(folder) for folder in source.adapters],
        "reward_model": source.scores,
        "dtype": str(kept).removeprefix("torch."),
        "bytes": size_of(target),
        "adapter_effect": effect,
        "check": asdict(found[0]) if found else None,
        "seconds": time.monotonic() - started,
    }


def _effect(wrapped: Any, observed: Observed, source: Source) -> float | None:
    """Return the largest change of a logit that the adapters make; None without a check."""
    if not observed.sequences:
        return None
    with wrapped.disable_adapter():
        effect = compare(wrapped, observed, scores=source.scores).max_logit_difference
    if effect == 0.0:
        logger.warning("the adapter changes nothing: was it trained?")
    return effect


def _save(model: PreTrainedModel, folder: Path, dtype: torch.dtype, max_shard_size: str) -> None:
    whole: Any = model
    whole.to(dtype)
    whole.config.dtype = dtype
    whole.save_pretrained(folder, max_shard_size=max_shard_size)


def _rounded(model: PreTrainedModel, kept: torch.dtype, observed: Observed, source: Source) -> Observed:
    """Return what the model says with its weights rounded to the format that it is kept in."""
    for parameter in model.parameters():  # not the buffers: those are computed anew when a model is loaded
        parameter.data.copy_(parameter.data.to(kept))
    return observe_again(model, observed, scores=source.scores)


def _read_back(folder: Path, rounded: Observed, source: Source, working: torch.dtype, device: torch.device) -> Any:
    """Load the model as anyone would, after it was compared with the rounded one in memory.

    Raises:
        UserError: they differ.
    """
    architecture = AutoModelForSequenceClassification if source.scores else AutoModelForCausalLM
    model = architecture.from_pretrained(folder, dtype=working).to(device).eval()
    _require_same(model, rounded, source, "what was written")
    return model


def _require_same(model: Any, observed: Observed, source: Source, what: str) -> None:
    require_same(compare(model, observed, scores=source.scores), _ERROR[model.dtype], what)


def carry_run_file(adapters: Sequence[Path], folder: Path) -> None:
    """Keep how the last adapter was trained; the reward service reads from it where a score stands."""
    run_file = run_file_of(adapters[-1])
    if run_file is not None:
        shutil.copyfile(run_file, folder / RUN_FILE)
