"""The LM head of TRL's trainers on a CPU: labelled tokens only, in small tiles whose memory is reused.

Without Triton, TRL computes the logits of every position, prompts and padding included, in tiles of 4,096 tokens by
32,768 vocabulary ids. Each operation on a tile allocates about 100 MB, which glibc takes from the system and returns:
a token costs 520 page faults at a vocabulary of 49,152. Smaller tiles give the same log-probabilities and gradients, up
to the rounding of sums in float32, and a third less peak memory.

TRL has no setting for the tile size, so this module replaces private constants of TRL for the duration of a block.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch

# glibc keeps freed blocks of up to 32 MiB for reuse, and 64 MiB of free memory at the end of the heap. The largest
# block is a slice of the head in float32; about six tiles in float32 exist at a time.
_LARGEST: Final = 31 * 2**20
_TILE: Final = 2**21
_SMALLEST: Final = 1024
"""Fewest vocabulary ids of a tile: with fewer, the overhead of each operation dominates."""


@contextmanager
def answers_in_tiles(device: torch.device, hidden_size: int) -> Iterator[None]:
    """Let TRL's head on the CPU read labelled positions in small tiles, for the duration of a block.

    A TRL version without these constants computes as usual.
    """
    ids = max(_SMALLEST, _LARGEST // (4 * hidden_size))
    names: dict[str, dict[str, Any]] = {
        "trl.trainer.utils": {"_CHUNKED_LOGPROB_CHUNK_SIZE": ids, "_use_triton": lambda device: True},
        "trl.kernels.chunked_logprob": {"TOKEN_CHUNK_SIZE": max(16, _TILE // ids)},
    }
    before: list[tuple[Any, dict[str, Any]]] = []
    if device.type == "cpu":
        with suppress(ModuleNotFoundError):  # an older TRL
            modules = {importlib.import_module(name): values for name, values in names.items()}
            if all(name in vars(module) for module, values in modules.items() for name in values):
                before = [(module, {name: vars(module)[name] for name in values}) for module, values in modules.items()]
                for module, values in modules.items():
                    vars(module).update(values)
    try:
        yield
    finally:
        for module, values in before:
            vars(module).update(values)
