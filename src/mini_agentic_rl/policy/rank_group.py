"""The ranks of a run: commands scattered, results gathered, gradients added up, weights copied from the first rank.

Every rank holds the same weights, adds the same gradients and scales them by the same norm, so that the weights stay
the same without ever being sent. Sums are in float32, and each of their parts is added up on one rank, so that all
ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn

_BUCKET: Final = 2**24
"""Numbers that are added up together, at most: 64 MiB."""


class RankGroup:
    """A process group; each method is called by all ranks, in the same order, on their torch threads.

    Args:
        rank: the number of this one.
        size: the number of all.
        process_group: all of them, with gloo for the CPU and NCCL for cards.
    """

    def __init__(self, rank: int, size: int, device: torch.device, process_group: dist.ProcessGroup) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self.process_group = process_group

    def leave(self) -> None:
        """Take the groups apart."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """Return this rank's one of the `values` that rank 0 gives, one for each rank; the others give None."""
        received: list[Any] = [None]
        given = None if values is None else list(values)
        dist.scatter_object_list(received, given, 0, group=self.process_group)
        return received[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks on rank 0, and an empty list on the others."""
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        dist.gather_object(value, values, 0, group=self.process_group)
        return values or []

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace each parameter's gradient by its sum over the ranks; where no rank has one, it stays None."""
        for bucket in _buckets(parameters):
            has_S = torch.tensor([float(p.grad is not None) for p in bucket], device=self.device)
            parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
            flat = torch.cat([has_S, *[part.detach().flatten().to(self.device, torch.float32) for part in parts]])
            dist.all_reduce(flat, group=self.process_group)
            sums = torch.split(flat[len(bucket) :], [p.numel() for p in bucket])
            for parameter, owners, total in zip(bucket, flat[: len(bucket)].tolist(), sums, strict=True):
                parameter.grad = total.view_as(parameter).to(parameter) if owners else None

    def clip(self, parameters: Sequence[nn.Parameter], max_norm: float) -> float:
        """Scale gradients that are the same everywhere down to a norm; return the norm that they had.

        The norm is the first rank's: how many threads add it up decides how it is rounded.
        """
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]).to(self.device)
        dist.broadcast(norm, 0, group=self.process_group)
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return float(norm)

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Make the tensors of all ranks those of the first one."""
        for tensor in tensors:
            there = tensor.detach().to(self.device).contiguous()
            dist.broadcast(there, 0, group=self.process_group)
            if self.rank > 0:
                tensor.data.copy_(there)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        if bucket and sum(p.numel() for p in bucket) + parameter.numel() > _BUCKET:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
