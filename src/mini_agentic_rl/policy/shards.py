"""A frozen base in parts: each rank holds a part of every layer, and gathers a layer while it computes it (FSDP2).

Adapters, embeddings and head stay whole on each rank, so that optimizer, checkpoints and publication know nothing of
parts. A layer is gathered by all ranks at once, while their trees differ in number and length. So before each sweep
through the layers the ranks agree on its direction, and one that has nothing to compute in it only hands its parts out.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from .errors import PolicyError
from .rank_group import RankGroup


class Sweep(IntEnum):
    """A way through all layers. Of those that ranks ask for at once the greatest is done first."""

    NOTHING = 0
    BACKWARD = 1
    FORWARD = 2


class ShardedBase:
    """The layers of a base that is in parts. Used by all ranks in step, on their torch threads."""

    def __init__(self, layers: Sequence[FSDPModule], group: RankGroup) -> None:
        self._layers = layers
        self._group = group

    @classmethod
    def cut(cls, base: nn.Module, backbone: nn.Module, layers: int, group: RankGroup) -> ShardedBase:
        """Keep this rank's part of each of the layers, and move all that stays whole to the group's device.

        The base may still be on the CPU: a device never holds more of it than its part and one layer.

        Raises:
            PolicyError: there is no list of so many layers.
        """
        lists = [m for m in backbone.modules() if isinstance(m, nn.ModuleList) and len(m) == layers]
        if not lists:
            raise PolicyError(f"{type(base).__name__} is no stack of {layers} layers", setting="shard")
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

    def begin_forward(self) -> None:
        """Return once all ranks go forward; before that take part in the sweeps that others do."""
        self._take_part(Sweep.FORWARD)

    def begin_backward(self) -> None:
        """Return once all ranks go backward; before that take part in the sweeps that others do."""
        self._take_part(Sweep.BACKWARD)

    def end(self) -> None:
        """Take part in the sweeps of others until no rank has one left."""
        self._take_part(Sweep.NOTHING)

    def _take_part(self, wanted: Sweep) -> None:
        while True:
            # On the CPU, where the group has gloo beside NCCL: a device would have to be waited for.
            agreed = torch.tensor([int(wanted)])
            dist.all_reduce(agreed, dist.ReduceOp.MAX, group=self._group.process_group)
            if int(agreed) == wanted:
                return
            for layer in reversed(self._layers) if int(agreed) == Sweep.BACKWARD else self._layers:
                layer.unshard()
                layer.reshard()
