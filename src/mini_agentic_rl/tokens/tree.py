"""The token tree: the only form a trajectory takes.

Calls that extend each other merge into one path, calls that diverge fork, and whatever several rollouts have in common
(their prompt, a system message, even the same sampled words) is held once. A node is a run of tokens. Two things
always hold: every inserted record ends exactly at the end of a node, and no two children of a node begin with the same
token. Which tokens are trained is not written on the nodes but kept as spans of the records, because one token may
have been sampled by several rollouts, each with its own advantage.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .record import CompletionRecord

NodeId = int
ROOT: NodeId = 0

Tokens = npt.NDArray[np.int64]


@dataclass
class Node:
    """A run of tokens below `parent`; `children` by their first token."""

    parent: NodeId
    tokens: Tokens
    children: dict[int, NodeId] = field(default_factory=dict)


@dataclass(frozen=True)
class InsertedRecord:
    """One record's place in the tree: its sampled tokens are the last `output_ids.size` of the path to `node`."""

    record: CompletionRecord
    node: NodeId
    trajectory: int


class TokenTree:
    """A forest of token runs under an empty root."""

    def __init__(self) -> None:
        self.nodes: list[Node] = [Node(parent=-1, tokens=np.empty(0, np.int64))]
        self.sampled: list[InsertedRecord] = []

    def insert(self, record: CompletionRecord, trajectory: int = 0) -> NodeId:
        """Add one call of trajectory number `trajectory`; return the node at whose end it ends.

        The longest common prefix with what is there is shared; the node where they part is split.
        """
        node = self.insert_tokens(np.concatenate([record.prompt_ids, record.output_ids]))
        self.sampled.append(InsertedRecord(record, node, trajectory))
        return node

    @property
    def token_count(self) -> int:
        """Number of distinct tokens in the tree."""
        return sum(node.tokens.size for node in self.nodes)

    def path(self, node: NodeId) -> list[NodeId]:
        """Return node ids from below the root down to `node`."""
        chain: list[NodeId] = []
        while node != ROOT:
            chain.append(node)
            node = self.nodes[node].parent
        return chain[::-1]

    def insert_tokens(self, tokens: Tokens) -> NodeId:
        """Add a sequence that no call sampled; return the node at whose end it ends."""
        current, start = ROOT, 0
        while start < tokens.size:
            child = self.nodes[current].children.get(int(tokens[start]))
            if child is None:
                return self._append(current, tokens[start:])
            run = self.nodes[child].tokens
            rest = tokens[start : start + run.size]
            # Compared as arrays: prompts run to thousands of tokens, and each call of a rollout repeats them.
            differs = np.nonzero(run[: rest.size] != rest)[0]
            common = int(differs[0]) if differs.size else rest.size
            if common < run.size:
                child = self._split(child, common)
            current, start = child, start + common
        return current

    def _append(self, parent: NodeId, tokens: Tokens) -> NodeId:
        node = len(self.nodes)
        self.nodes.append(Node(parent, tokens))
        self.nodes[parent].children[int(tokens[0])] = node
        return node

    def _split(self, node: NodeId, at: int) -> NodeId:
        """Cut `node` after `at` tokens; the new node holds the head, so that ids of ends stay valid."""
        tail = self.nodes[node]
        head = self._append(tail.parent, tail.tokens[:at])
        tail.parent, tail.tokens = head, tail.tokens[at:]
        self.nodes[head].children[int(tail.tokens[0])] = node
        return head
