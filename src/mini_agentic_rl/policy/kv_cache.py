"""The key/value cache: blocks of a fixed size, and a prefix tree that finds those already computed.

Blocks of `block_size` tokens live in one pool per layer. A full block is published in the prefix tree under its parent
block and its tokens, so that a later prompt with the same prefix reuses it. The tree's roots are salted by adapter and
policy version: a weight change makes every older block unreachable. Blocks are reference-counted; unreferenced ones
stay in the tree until their room is needed, the least recently used first.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .machine import release_free_memory

Root = tuple[str, int]
Key = tuple[int, tuple[int, ...]]


class KVPool:
    """Keys and values of every layer: [slots, KV heads x D], where a slot is block * block_size + offset.

    Its memory exists from `allocate` to `release`.
    """

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
        self.heads = heads
        """Number of heads of keys and values."""
        self._heads_and_size = (heads, head_size)
        self._shape = (layers, blocks * block_size, heads * head_size)
        self._dtype = dtype
        self.release()

    @property
    def allocated(self) -> bool:
        """True between `allocate` and `release`."""
        return self.keys.numel() > 0

    def allocate(self) -> None:
        """Allocate the memory if necessary, after free pages of the heap are released."""
        if not self.allocated:
            release_free_memory()
            self.keys = _zeros(self._shape, self._dtype, self.device)
            self.values = _zeros(self._shape, self._dtype, self.device)

    def release(self) -> None:
        """Free the memory; all keys and values are lost."""
        self.keys = self.values = torch.empty(0, dtype=self._dtype, device=self.device)
        self._gathered = (self.keys, self.values)

    def write(self, layer: int, slot_T: Tensor, k_THD: Tensor, v_THD: Tensor) -> None:
        """Store the keys and values of T new tokens."""
        self.keys[layer].index_copy_(0, slot_T, k_THD.reshape(slot_T.numel(), -1))
        self.values[layer].index_copy_(0, slot_T, v_THD.reshape(slot_T.numel(), -1))

    def read(self, layer: int, slots: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return keys and values at `slots` (of any shape): [*slots.shape, KV heads, D].

        Those of a slice are views. On the CPU all others are in a buffer that the next call overwrites.
        """
        if isinstance(slots, slice):
            keys, values = self.keys[layer, slots], self.values[layer, slots]
            return keys.view(-1, *self._heads_and_size), values.view(-1, *self._heads_and_size)
        shape, flat = (*slots.shape, *self._heads_and_size), slots.reshape(-1)
        if self.device.type != "cpu":
            keys, values = self.keys[layer].index_select(0, flat), self.values[layer].index_select(0, flat)
        else:
            rows = flat.numel()
            # Page faults of fresh memory would cost more than reading. Layers are read one after another, so one buffer
            # is enough; it has a quarter more rows, because histories grow by a token each step.
            if len(self._gathered[0]) < rows:
                both = self.keys.new_empty(2, rows + rows // 4, self._shape[-1])
                self._gathered = (both[0], both[1])
            keys, values = (buffer[:rows] for buffer in self._gathered)
            torch.index_select(self.keys[layer], 0, flat, out=keys)
            torch.index_select(self.values[layer], 0, flat, out=values)
        return keys.view(shape), values.view(shape)


def _zeros(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return zeros: a masked slot takes part in products with weight 0, where a NaN would stay."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # numpy's zeros come from calloc, so unused slots take no memory; torch would write every page.
    rows = (*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.from_numpy(np.zeros(rows, np.uint8)).view(dtype)


@dataclass
class BlockTable:
    """The blocks of one sequence, in order, and its place in the prefix tree."""

    blocks: list[int] = field(default_factory=list)
    published: int = 0
    """Number of leading blocks that are in the prefix tree."""
    node: int = 0
    """Prefix-tree node of the last published block; of the root, before there is one."""


@dataclass
class _BlockState:
    references: int = 0
    """Number of sequences that hold the block."""
    key: Key | None = None
    """Entry of the prefix tree that finds the block; None if there is none."""


class BlockCache:
    """The accounting of the cache: which sequence holds which block. It knows token ids, not tensors."""

    def __init__(self, blocks: int, block_size: int, *, share: bool = True) -> None:
        """
        Args:
            blocks: blocks that exist.
            block_size: tokens of a block.
            share: False shares no prefixes: every sequence computes all of its keys.
        """
        self.block_size = block_size
        self._share = share
        self.total = blocks
        """Number of blocks that exist."""
        # Created when first used: creating all states of a large cache would take half a second.
        self._blocks: defaultdict[int, _BlockState] = defaultdict(_BlockState)
        # Taken from the end, so that the lowest blocks are used first and the memory of the others is never touched.
        self._free = list(range(blocks - 1, -1, -1))
        # Unreferenced blocks in the prefix tree, the least recently used first.
        self._idle: OrderedDict[int, None] = OrderedDict()
        # From (parent node, tokens of a block) to (block, its node). Nodes are never reused, so the children of an
        # evicted block can no longer be found.
        self._tree: dict[Key, tuple[int, int]] = {}
        self._roots: dict[Root, int] = {}
        self._new_nodes = itertools.count(2)

    @property
    def available(self) -> int:
        """Number of blocks that can be allocated now."""
        return len(self._free) + len(self._idle)

    @property
    def idle(self) -> int:
        """Number of unreferenced blocks in the prefix tree."""
        return len(self._idle)

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def open(self, root: Root, tokens: Sequence[int]) -> BlockTable:
        """Return a table with every cached block that `tokens` begins with. The caller must `close` it.

        At least one token is always left to compute: the next one is drawn from its hidden state, which is not cached.
        """
        if root not in self._roots:
            self._roots[root] = next(self._new_nodes)
        table = BlockTable(node=self._roots[root])
        for start in range(0, len(tokens) - self.block_size, self.block_size):
            entry = self._tree.get((table.node, tuple(tokens[start : start + self.block_size])))
            if entry is None:
                break
            block, table.node = entry
            self._reference(block)
            table.blocks.append(block)
            table.published += 1
        return table

    def grow(self, table: BlockTable, tokens: int) -> bool:
        """Add blocks until `table` has room for `tokens` tokens; return False, and add none, if too few are left."""
        missing = self.blocks_for(tokens) - len(table.blocks)
        if missing > self.available:
            return False
        for _ in range(missing):
            block = self._free.pop() if self._free else self._forget_block(next(iter(self._idle)))
            self._reference(block)
            table.blocks.append(block)
        return True

    def publish(self, table: BlockTable, tokens: Sequence[int], computed: int) -> None:
        """Enter the blocks that `computed` tokens fill into the prefix tree.

        This may be called before the forward pass that fills them, because every layer writes its keys before it reads
        any. That pass must follow.
        """
        while self._share and (table.published + 1) * self.block_size <= computed:
            start = table.published * self.block_size
            key = (table.node, tuple(tokens[start : start + self.block_size]))
            published = self._tree.get(key)
            if published is None:
                block = table.blocks[table.published]
                table.node = next(self._new_nodes)
                self._tree[key] = (block, table.node)
                self._blocks[block].key = key
            else:
                # Another sequence has published the same tokens. This one keeps its own copy of the block until the
                # table is closed, and continues below the same node.
                table.node = published[1]
            table.published += 1

    def close(self, table: BlockTable) -> None:
        """Release a sequence's blocks; published ones stay in the prefix tree."""
        # From the end: the last blocks become the least recently used, and are evicted before their predecessors.
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
        """Remove all blocks computed with `adapter` from the prefix tree, and free the unreferenced ones."""
        gone = {node for root, node in self._roots.items() if root[0] == adapter}
        self._roots = {root: node for root, node in self._roots.items() if root[0] != adapter}
        for (parent, _), (block, node) in list(self._tree.items()):  # a parent was entered before its children
            if parent in gone:
                gone.add(node)
                if block in self._idle:
                    self._free.append(self._forget_block(block))

    def clear(self) -> None:
        """Remove all blocks from the prefix tree; none may be referenced."""
        self.drop_idle()
        self._roots.clear()

    def drop_idle(self) -> None:
        """Empty the prefix tree of unreferenced blocks."""
        while self._idle:
            self._free.append(self._forget_block(next(iter(self._idle))))

    def _reference(self, block: int) -> None:
        self._idle.pop(block, None)
        self._blocks[block].references += 1

    def _forget_block(self, block: int) -> int:
        """Take an idle block out of the prefix tree."""
        del self._idle[block]
        entry = self._blocks[block]
        if entry.key is not None:
            del self._tree[entry.key]
            entry.key = None
        return block
