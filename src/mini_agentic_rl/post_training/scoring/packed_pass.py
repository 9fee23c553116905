"""Batches without padding, in which texts that begin alike are computed once up to where they part.

The texts are grown into a token tree, as trajectories are for learning, and go through the model's backbone with the
tree's attention: answers to one prompt share the prompt, and all conversations share what the template puts first. The
score is read at each text's last token. For decoders only; `agrees` tells whether a model gives the same scores this
way as by its own forward pass, and `reward_model.py` asks before it uses it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from ...policy import ATTENTION_NAME, KeptKeys, TreeTables
from ...tokens import CompletionRecord, TokenTree, cut, pack
from .passes import Batch
from .rendering import Rendered

_CHUNK_ON_CPU, _CHUNK_ON_GPU = 512, 2048
"""Tokens of one forward pass. Within one, the attention's cost grows with the square of the largest subtree."""


class PackedPass:
    """Scores with a decoder whose head is one linear layer.

    Args:
        model: on its device, in evaluation mode, with `score` on top of its backbone.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._backbone: nn.Module = getattr(model, model.base_model_prefix)
        self._head: nn.Module = model.get_submodule("score")
        self._pad_id: int | None = model.config.get_text_config().pad_token_id
        self._chunk_tokens = _CHUNK_ON_CPU if model.device.type == "cpu" else _CHUNK_ON_GPU

    def plan(self, texts: Sequence[Rendered], batch_size: int, batch_tokens: int) -> list[Batch]:
        """Texts that begin alike together: in the order of their ids, each adds what it does not share with the one
        before it."""
        batches: list[Batch] = []
        current: list[int] = []
        tokens = 0
        for item in sorted(range(len(texts)), key=lambda item: texts[item].ids):
            ids = texts[item].ids
            more = len(ids) - (_shared(texts[current[-1]].ids, ids) if current else 0)
            if current and (len(current) == batch_size or tokens + more > batch_tokens):
                batches.append(Batch(tuple(current), tokens))
                current, tokens, more = [], 0, len(ids)
            current.append(item)
            tokens += more
        return [*batches, Batch(tuple(current), tokens)] if current else batches

    @torch.no_grad()
    def scores(self, texts: Sequence[Rendered]) -> list[float]:
        """The scores, in order."""
        tree = TokenTree()
        for text in texts:
            tree.insert(_record(self._read(text)))
        packed = pack([tree])
        device = self._model.device
        tokens_T = torch.from_numpy(packed.tokens_T).to(device)
        positions_T = torch.from_numpy(packed.positions_T).to(device)
        last_B = packed.token_S
        found_B = np.empty(len(texts), np.float32)
        path: list[KeptKeys] = []
        for chunk in cut(packed, self._chunk_tokens):
            while path and path[-1].chunk.reach <= chunk.start:
                path.pop()
            own = slice(chunk.start, chunk.stop)
            kept = KeptKeys(chunk) if chunk.reach > chunk.stop else None
            hidden_TM = self._hidden(tokens_T[own], positions_T[own], TreeTables(packed, chunk, path, kept, device))
            if kept is not None:
                path.append(kept)
            here_N = np.flatnonzero((last_B >= chunk.start) & (last_B < chunk.stop))
            rows_N = torch.from_numpy(last_B[here_N] - chunk.start).to(device)
            found_B[here_N] = self._head(hidden_TM[rows_N])[:, 0].float().cpu().numpy()
        return [float(score) for score in found_B]

    def _hidden(self, tokens_T: torch.Tensor, positions_T: torch.Tensor, tables: TreeTables) -> torch.Tensor:
        output = self._backbone(
            input_ids=tokens_T[None], position_ids=positions_T[None], use_cache=False, attention_tables=tables
        )
        hidden_TM: torch.Tensor = output.last_hidden_state[0]
        return hidden_TM

    def _read(self, text: Rendered) -> tuple[int, ...]:
        """The ids up to the one at which the score is read: transformers' decoders take the last that is not the
        padding token, also where a text ends with that token as its end of turn."""
        ids = text.ids
        end = len(ids)
        while end > 2 and ids[end - 1] == self._pad_id:
            end -= 1
        return ids[:end]


def agrees(model: PreTrainedModel, texts: Sequence[Rendered], expected: Sequence[float], tolerance: float) -> bool:
    """Let `model` attend by token trees if it gives the `expected` scores of `texts` so; else leave it as it was.

    Layers that mix tokens by other means than attention (state-space models, linear attention) or weigh them in ways
    that the tree's attention does not know (sinks) do not.
    """
    before: str = model.config._attn_implementation
    model.set_attn_implementation(ATTENTION_NAME)
    same = False
    with contextlib.suppress(Exception):  # an architecture that cannot be called so keeps its own forward pass
        same = np.allclose(PackedPass(model).scores(texts), expected, rtol=tolerance, atol=tolerance)
    if not same:
        model.set_attn_implementation(before)
    return same


def _record(ids: Sequence[int]) -> CompletionRecord:
    """The text as a call whose one sampled token is the last, so that packing tells where that token is."""
    array = np.array(ids, np.int64)
    return CompletionRecord(array[:-1], array[-1:], np.zeros(1, np.float32))


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens at the beginning that both have."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
