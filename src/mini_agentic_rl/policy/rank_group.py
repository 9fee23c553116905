"""The ranks of a run as a process group, and a base of which each rank holds a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .errors import PolicyError

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

T = TypeVar("T")

_BUCKET: Final = 2**24
"""Maximum number of float32 values of an all-reduce: 64 MiB."""


class RankGroup:
    """A process group; each method is called by all ranks, in the same order, on their torch threads.

    Every rank holds the same weights, adds the same gradients and scales them by the same norm, so that the weights
    stay the same without ever being sent. Sums are in float32, and each of their parts is added up on one rank, so that
    all ranks get the same bits.

    Args:
        rank: rank of this process.
        size: number of ranks.
        process_group: all ranks, with gloo for the CPU and NCCL for GPUs.
    """

    def __init__(self, rank: int, size: int, device: torch.device, process_group: dist.ProcessGroup) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self.process_group = process_group

    def leave(self) -> None:
        """Destroy the process groups."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in their order; they are pickled."""
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.process_group)
        return values

    def join_rows(self, rows: Tensor) -> None:
        """Give all ranks the rows that each has filled; a row is filled by one rank, and zero on the others."""
        dist.all_reduce(rows, group=self.process_group)

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
        """Scale gradients, which are the same on all ranks, down to a norm; return the norm before.

        The norm is that of rank 0: its rounding depends on the number of threads.
        """
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]).to(self.device)
        dist.broadcast(norm, 0, group=self.process_group)
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return float(norm)

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """Copy the tensors of rank 0 to all other ranks."""
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


NO_SWEEP, BACKWARD, FORWARD = range(3)
"""Sweeps through all layers. Of those that ranks want at the same time the greatest is done first."""


class ShardedBase:
    """A frozen base in parts: each rank holds a part of every layer, and gathers a layer while it computes it (FSDP2).

    Adapters, embeddings and head stay whole on each rank, so that optimizer, checkpoints and publication know nothing
    of parts. A layer is gathered by all ranks at once, while their trees differ in number and length. So before each
    sweep through the layers the ranks agree on its direction, and one that has nothing to compute in it only hands its
    parts out. Used by all ranks in step, on their torch threads.
    """

    def __init__(self, layers: Sequence[FSDPModule], group: RankGroup) -> None:
        self._layers = layers
        self._group = group

    @classmethod
    def cut(cls, base: nn.Module, backbone: nn.Module, layers: int, group: RankGroup) -> ShardedBase:
        """Keep this rank's part of each layer, and move everything else to the group's device.

        The base may still be on the CPU: a device never holds more of it than its part and one layer.

        Raises:
            PolicyError: there is no list of so many layers.
        """
        lists = [m for m in backbone.modules() if isinstance(m, nn.ModuleList) and len(m) == layers]
        if not lists:
            raise PolicyError(f"{type(base).__name__} has no list of {layers} layers", setting="shard")
        # Imported here: most runs do without FSDP.
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group.process_group, group.device.type)
        whole = {p for name, p in base.named_parameters() if "lora_" in name}
        for layer in lists[0]:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=whole)
        in_layers = {id(p) for layer in lists[0] for p in layer.parameters()}
        whole |= {p for p in base.parameters() if id(p) not in in_layers}
        fully_shard(backbone, mesh=mesh, ignored_params=whole)
        for parameter in whole:
            parameter.data = parameter.data.to(group.device)
        for buffer in base.buffers():
            buffer.data = buffer.data.to(group.device)
        cut: list[Any] = list(lists[0])
        for position, layer in enumerate(cut):
            # By default the layer that ran before is fetched next, which is the last one of an earlier sweep for the
            # first one: ranks that have computed other sweeps would fetch other layers.
            layer.set_modules_to_backward_prefetch([cut[max(0, position - 1)]])
        return cls(cut, group)

    def begin(self, sweep: int) -> None:
        """Return once all ranks begin this sweep, or none has one left; until then take part in those of others."""
        while True:
            # On the CPU (gloo), so that no rank waits for its GPU.
            agreed = torch.tensor([sweep])
            dist.all_reduce(agreed, dist.ReduceOp.MAX, group=self._group.process_group)
            if int(agreed) == sweep:
                return
            for layer in reversed(self._layers) if int(agreed) == BACKWARD else self._layers:
                layer.unshard()
                layer.reshard()
