"""Merge adapters into their base, and check that the result behaves like the model it was made from.

The check: the unmerged model samples greedily, and its logits are kept. The merged model reads the same tokens, in
memory and again as written. Its best tokens must be the same, and its logits equal up to rounding.
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
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ...errors import UserError
from ...gateway import ChatRenderer, load_tokenizer
from ...metrics import ConsoleLogger
from ...policy import resolve_device
from ..models import RUN_FILE, run_file_of
from .base import Source, attach, find_source, load_base, merged, publish, size_of, target_folder
from .settings import MergeSettings, ResultSettings

logger = logging.getLogger(__name__)

PROMPTS = (
    "What is 17 + 25? Explain in one sentence.",
    "Write a haiku about the sea.",
    "用一句话介绍一下北京。",
    "def fibonacci(n):",
)


@dataclass(frozen=True)
class Observed:
    """The tokens that a model sampled, and its logits."""

    sequences: tuple[tuple[int, ...], ...]
    """Prompts, each with the tokens that were sampled after it."""
    prompt_tokens: tuple[int, ...]
    """Number of tokens of each prompt."""
    logits: tuple[torch.Tensor, ...]
    """Of each sequence, at the positions that predict a sampled token, [sampled, V]; of a reward model the score, [1,
    1]. In float32 on the CPU."""


@dataclass(frozen=True)
class Difference:
    """Two models on the same tokens."""

    tokens: int
    """Number of tokens that were sampled."""
    tokens_equal: int
    """Number of those at which both models would sample the same."""
    max_logit_difference: float
    """Largest difference of two logits."""
    largest_logit: float
    """The largest logit, by its absolute value."""
    widest_gap: float
    """Largest distance, under the first model, between two tokens of which each model would sample another; 0 if there
    are none."""


def prompt_ids(tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str]) -> list[list[int]]:
    """Return the prompts as the model is asked them."""
    renderer = ChatRenderer(tokenizer)
    return [renderer.render([{"role": "user", "content": prompt}]) for prompt in prompts]


@torch.no_grad()
def observe(model: Any, prompts: Sequence[Sequence[int]], tokens: int, *, scores: bool) -> Observed:
    """Let a model sample greedily after each prompt, or score each."""
    sequences: list[tuple[int, ...]] = []
    for prompt in prompts:
        ids = torch.tensor([list(prompt)], device=model.device)
        if scores:
            sequences.append(tuple(prompt))
            continue
        greedy = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0)
        found = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=greedy)
        sequences.append(tuple(found[0].tolist()))
    lengths = tuple(len(prompt) for prompt in prompts)
    found = (_logits(model, *sequence, scores) for sequence in zip(sequences, lengths, strict=True))
    return Observed(tuple(sequences), lengths, tuple(found))


@torch.no_grad()
def observe_again(model: Any, observed: Observed, *, scores: bool) -> Observed:
    """Return what another model says to the same tokens."""
    both = zip(observed.sequences, observed.prompt_tokens, strict=True)
    return replace(observed, logits=tuple(_logits(model, sequence, length, scores) for sequence, length in both))


@torch.no_grad()
def compare(model: Any, observed: Observed, *, scores: bool) -> Difference:
    """Return how a model differs from the one that was observed."""
    tokens = equal = 0
    difference = largest = gap = 0.0
    for sequence, length, before_SV in zip(observed.sequences, observed.prompt_tokens, observed.logits, strict=True):
        after_SV = _logits(model, sequence, length, scores)
        difference = max(difference, float((after_SV - before_SV).abs().max()))
        largest = max(largest, float(before_SV.abs().max()))
        if scores:
            continue
        chosen_S, best_S = before_SV.argmax(-1), after_SV.argmax(-1)
        rows_S = torch.arange(len(chosen_S))
        gap = max(gap, float((before_SV[rows_S, chosen_S] - before_SV[rows_S, best_S]).max()))
        tokens += len(chosen_S)
        equal += int((chosen_S == best_S).sum())
    return Difference(tokens, equal, difference, largest, gap)


def require_same(found: Difference, epsilon: float, what: str) -> None:
    """Check that two models are one.

    Args:
        found: the difference.
        epsilon: relative difference of two logits that rounding may make.
        what: what is compared, for the message.

    Raises:
        UserError: it is more; greedy tokens may differ only where rounding decides between two.
    """
    allowed = epsilon * max(1.0, found.largest_logit)
    if found.max_logit_difference <= allowed and found.widest_gap <= 2 * allowed:
        return
    raise UserError(
        f"{what} is not the same model: {found.tokens - found.tokens_equal} of {found.tokens} greedy tokens differ, "
        f"and logits by {found.max_logit_difference:.3g}, where rounding explains {allowed:.3g}. Nothing was written; "
        "look at the adapter and its base (without `check` it is written all the same)"
    )


def _logits(model: Any, sequence: Sequence[int], prompt_tokens: int, scores: bool) -> torch.Tensor:
    ids = torch.tensor([list(sequence)], device=model.device)
    logits: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    if scores:
        return logits.float().cpu()
    return logits[0, prompt_tokens - 1 : -1].float().cpu()


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
