"""An adapter added into its base: a checkpoint of its own, for plain transformers, for vLLM, for all that read one.

    W' = W + sum over adapters of (alpha / r) B A

The sum is made in float32 where memory allows and rounded once, to the format that the base was saved in. What is
published has been read back from disk and compared with base and adapters: `check.py`.
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

from ...algorithm.serving import load_tokenizer
from ...metrics import ConsoleLogger
from ...policy.load import resolve_device
from .base import Source, attach, find_source, load_base, merged
from .check import PROMPTS, Difference, Observed, compare, observe, prompt_ids, require_same
from .settings import MergeSettings, ResultSettings
from .target import publish, size_of, target_folder

logger = logging.getLogger(__name__)

RUN_FILE = "run.json"
"""How an adapter was trained; kept beside the result."""

_ROUNDING = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""Relative difference of logits that weights rounded to a format make."""


def merge(settings: MergeSettings) -> dict[str, Any]:
    """Merge the adapters into their base and return what was done: where it is, its size, and how it compares.

    Raises:
        UserError: a setting cannot work, the adapter does not fit, or the merged model is not the same model.
    """
    source = find_source(settings.model, settings.adapter, "--adapter")
    target = target_folder(settings.output_dir, settings.adapter[-1], "-merged", overwrite=settings.overwrite)
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
            _require_same(held[0], observed, source, working, "the merged model in memory")
        progress.advance()
        found: list[Difference] = []

        def write(folder: Path) -> None:
            _save(held.pop(), folder, kept, settings.max_shard_size)
            tokenizer.save_pretrained(folder)
            carry_run_file(source.adapters, folder)
            progress.advance()
            if settings.check:
                found.append(_read_back(folder, observed, source, working, kept, settings))
                progress.advance()

        publish(target, write)
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
    """By how much the adapters change a logit at most; None without a check."""
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


def _read_back(
    folder: Path,
    observed: Observed,
    source: Source,
    working: torch.dtype,
    kept: torch.dtype,
    settings: ResultSettings,
) -> Difference:
    """Load what was written as anyone would, and compare it in the precision of before."""
    architecture = AutoModelForSequenceClassification if source.scores else AutoModelForCausalLM
    model = architecture.from_pretrained(folder, dtype=working).to(resolve_device(settings.device)).eval()
    coarser = max(working, kept, key=lambda dtype: _ROUNDING[dtype])
    return _require_same(model, observed, source, coarser, "what was written")


def _require_same(model: Any, observed: Observed, source: Source, dtype: torch.dtype, what: str) -> Difference:
    found = compare(model, observed, scores=source.scores)
    require_same(found, _ROUNDING[dtype], what)
    return found


def carry_run_file(adapters: Sequence[Path], folder: Path) -> None:
    """Keep how the last adapter was trained; the reward service reads from it where a score stands."""
    last = adapters[-1]
    run = last.parent if last.name.startswith("epoch_") else last
    if (run / RUN_FILE).is_file():
        shutil.copyfile(run / RUN_FILE, folder / RUN_FILE)
