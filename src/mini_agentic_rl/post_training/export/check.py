"""The check that a merged model is the model it was made from: the same greedy tokens, and the same logits but for
rounding.

The unmerged model samples greedily and its logits are kept. The merged one is given the same tokens; where its best
token is another one, it would have sampled otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ...errors import UserError
from ...gateway import ChatRenderer

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
