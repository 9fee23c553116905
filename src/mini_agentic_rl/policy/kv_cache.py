"""The key/value cache: fixed-size blocks, and a prefix tree that finds those already computed.

Blocks of `block_size` tokens live in one pool per layer. A full block is published in the prefix tree under its parent
block and its tokens, so a later prompt that begins alike takes it as it is. The tree's roots are salted by adapter and
policy version: a weight change makes every older block unreachable. Blocks are reference-counted; unreferenced ones
stay findable until their room is needed, the least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

Root = tuple[str, int]
Key = tuple[int, tuple[int, ...]]


class KVPool:
    """Keys and values of every layer: [slots, KV heads x D], a slot being block * block_size + offset. Its memory is
    there from `allocate` to `release`."""

    def __init__(
        self,
        layers: int,
        blocks: int,
        block_size: int,
        heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.device = device
        self._heads_and_size = (heads, head_size)
        self._shape = (layers, blocks * block_size, heads * head_size)
        self._dtype = dtype
        self.release()

    @property
    def heads(self) -> int:
        """Heads of keys and values."""
        return self._heads_and_size[0]

    @property
    def allocated(self) -> bool:
        return self.keys.numel() > 0

    def allocate(self) -> None:
        """Make room, unless it is there."""
        if not self.allocated:
            self.keys = _zeros(self._shape, self._dtype, self.device)
            self.values = _zeros(self._shape, self._dtype, self.device)

    def release(self) -> None:
        """Give the memory back, and so forget all keys and values."""
        self.keys = self.values = torch.empty(0, dtype=self._dtype, device=self.device)
        self._gathered = (self.keys, self.values)

    def write(self, layer: int, slot_T: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
        """Store the keys and values of T new tokens."""
        self.keys[layer].index_copy_(0, slot_T, k_THD.reshape(slot_T.numel(), -1))
        self.values[layer].index_copy_(0, slot_T, v_THD.reshape(slot_T.numel(), -1))

    def read(self, layer: int, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Keys and values at `slots` (any shape): [*slots.shape, KV heads, D]. Those of a slice are not copied. On the
        CPU the others are good until the next reading."""
        if isinstance(slots, slice):
            keys, values = self.keys[layer, slots], self.values[layer, slots]
            return keys.view(-1, *self._heads_and_size), values.view(-1, *self._heads_and_size)
        shape, flat = (*slots.shape, *self._heads_and_size), slots.reshape(-1)
        if self.device.type != "cpu":
            keys, values = self.keys[layer].index_select(0, flat), self.values[layer].index_select(0, flat)
        else:
            # Memory that is new each time costs more than the reading: the system gives it page by page.
            keys, values = (buffer[: flat.numel()] for buffer in self._buffers(flat.numel()))
            torch.index_select(self.keys[layer], 0, flat, out=keys)
            torch.index_select(self.values[layer], 0, flat, out=values)
        return keys.view(shape), values.view(shape)

    def _buffers(self, rows: int) -> tuple[Tensor, Tensor]:
        if len(self._gathered[0]) < rows:
            width = self._shape[-1]
            self._gathered = (
                self.keys.new_empty(rows + rows // 4, width),
                self.keys.new_empty(rows + rows // 4, width),
            )
        return self._gathered


def _zeros(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, because a masked slot still takes part in a product, where a NaN would survive its weight of 0. On the CPU
    they come from calloc: slots that are never used take no memory."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    rows = (*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.from_numpy(np.zeros(rows, np.uint8)).view(dtype)


@dataclass
class BlockTable:
    """The blocks of one sequence, in order, and where in the prefix tree it stands."""

    blocks: list[int] = field(default_factory=list)
    published: int = 0
    """How many leading blocks are in the prefix tree."""
    node: int = 0
    """Prefix-tree node of the last published block."""


@dataclass
class _BlockState:
    references: int = 0
    key: Key | None = None


class BlockCache:
    """Who holds which block. Knows token ids, not tensors."""

    def __init__(self, blocks: int, block_size: int, *, share: bool = True) -> None:
        """`share` False finds no prefix again: every sequence computes all of its keys."""
        self.block_size = block_size
        self._share = share
        self._blocks = [_BlockState() for _ in range(blocks)]
        self._free = list(range(blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._tree: dict[Key, tuple[int, int]] = {}
        self._roots: dict[Root, int] = {}
        self._next_node = 1

    @property
    def available(self) -> int:
        """Blocks that could be handed out now."""
        return len(self._free) + len(self._idle)

    @property
    def idle(self) -> int:
        """Blocks that nobody holds and that may be found again."""
        return len(self._idle)

    @property
    def total(self) -> int:
        return len(self._blocks)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def open(self, root: Root, tokens: Sequence[int]) -> BlockTable:
        """Take every cached block with which `tokens` begins; at least one token is always left to compute."""
        node = self._root(root)
        table = BlockTable(node=node)
        for start in range(0, len(tokens) - self.block_size, self.block_size):
            found = self._tree.get((table.node, tuple(tokens[start : start + self.block_size])))
            if found is None:
                break
            block, table.node = found
            self._reference(block)
            table.blocks.append(block)
            table.published += 1
        return table

    def grow(self, table: BlockTable, tokens: int) -> bool:
        """Make room for `tokens` tokens in all; False, and nothing changed, when the blocks are not to be had."""
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing > self.available:
            return False
        for _ in range(missing):
            block = self._take()
            self._reference(block)
            table.blocks.append(block)
        return True

    def publish(self, table: BlockTable, tokens: Sequence[int], computed: int) -> None:
        """Enter the blocks that `computed` tokens fill. May be called before the forward pass that fills them,
        because every layer writes its keys before it reads any."""
        while self._share and (table.published + 1) * self.block_size <= computed:
            start = table.published * self.block_size
            key = (table.node, tuple(tokens[start : start + self.block_size]))
            found = self._tree.get(key)
            if found is None:
                block = table.blocks[table.published]
                table.node = self._new_node()
                self._tree[key] = (block, table.node)
                self._blocks[block].key = key
            else:
                table.node = found[1]
            table.published += 1

    def close(self, table: BlockTable) -> None:
        """Give back a sequence's blocks; published ones stay findable."""
        for block in reversed(table.blocks):
            entry = self._blocks[block]
            entry.references -= 1
            if entry.references == 0:
                if entry.key is None:
                    self._free.append(block)
                else:
                    self._idle[block] = None
        table.blocks, table.published, table.node = [], 0, 0

    def forget(self, adapter: str) -> None:
        """Make every block computed with `adapter` unreachable, and free those that nobody holds."""
        gone = {node for root, node in self._roots.items() if root[0] == adapter}
        self._roots = {root: node for root, node in self._roots.items() if root[0] != adapter}
        for (parent, _), (block, node) in list(self._tree.items()):  # a parent was entered before its children
            if parent in gone:
                gone.add(node)
                if block in self._idle:
                    self._free.append(self._forget_block(block))

    def clear(self) -> None:
        """Forget everything cached; nobody may hold a block."""
        self.drop_idle()
        self._roots.clear()

    def drop_idle(self) -> None:
        """Empty the prefix tree of unreferenced blocks."""
        while self._idle:
            self._free.append(self._evict())

    def _root(self, root: Root) -> int:
        if root not in self._roots:
            self._roots[root] = self._new_node()
        return self._roots[root]

    def _new_node(self) -> int:
        self._next_node += 1
        return self._next_node

    def _reference(self, block: int) -> None:
        self._idle.pop(block, None)
        self._blocks[block].references += 1

    def _take(self) -> int:
        return self._free.pop() if self._free else self._evict()

    def _evict(self) -> int:
        return self._forget_block(next(iter(self._idle)))

    def _forget_block(self, block: int) -> int:
        """Take an idle block out of the prefix tree."""
        del self._idle[block]
        entry = self._blocks[block]
        if entry.key is not None:
            del self._tree[entry.key]
            entry.key = None
        return block
