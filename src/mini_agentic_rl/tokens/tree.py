"""The token tree, the only form a trajectory takes; and packing, its layout as flat arrays for one forward pass.

Calls that extend each other merge into one path, calls that diverge fork, and whatever several rollouts have in common
(their prompt, a system message, even the same sampled words) is held once. A node is a run of tokens. Two invariants
hold: every inserted record ends exactly at the end of a node, and no two children of a node begin with the same token.
Which tokens are trained is not written on the nodes but kept as spans of the records, because one token may have been
sampled by several rollouts, each with its own advantage.

Packed trees follow each other, each in depth-first order, so that the descendants of a token are exactly the tokens
that follow it up to its `end`. A token t may look at s when `s <= t < end[s]`: that rule is the attention mask. What is
trained are *terms*: one for each time that a rollout sampled a token and had a choice. Several terms may share a token;
the token is computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .request import GREEDY_BELOW, CompletionRecord

NodeId = int
ROOT: NodeId = 0

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass
class Node:
    """A run of tokens below `parent`; `children` by their first token."""

    parent: NodeId
    tokens: Ints
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

    @classmethod
    def of(cls, trajectories: Iterable[Iterable[CompletionRecord]]) -> TokenTree:
        """Return the tree of the calls of some trajectories, which are numbered from 0."""
        tree = cls()
        for number, records in enumerate(trajectories):
            for record in records:
                tree.insert(record, number)
        return tree

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

    def insert_tokens(self, tokens: Ints) -> NodeId:
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

    def _append(self, parent: NodeId, tokens: Ints) -> NodeId:
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


@dataclass(frozen=True)
class PackedTrees:
    """Trees as arrays over T packed tokens, and their trained tokens as arrays over S terms."""

    tokens_T: Ints
    """Token ids."""
    positions_T: Ints
    """Distance from the root: the position in the sequence that the token belongs to."""
    parent_T: Ints
    """Index of the token before it in its sequence; -1 for the first."""
    end_T: Ints
    """Index after the last descendant."""
    tree_starts: tuple[int, ...]
    """Index of the first token of each tree; no attention crosses from one tree to another."""
    token_S: Ints
    """Index into T of the sampled token of each term."""
    behaviour_logprobs_S: Floats
    """Log-probability that the sampler recorded for it."""
    temperature_S: Floats
    """Temperature that it was sampled at (1 for greedy calls)."""
    trajectory_S: Ints
    """Number of the trajectory that sampled it."""
    call_S: Ints
    """Number of the call within the pack, among those that have terms."""
    version_S: Ints
    """Policy version that sampled it."""

    @property
    def predicted_at_S(self) -> Ints:
        """Index into T of the token after which each term's own was sampled."""
        return self.parent_T[self.token_S]

    @property
    def target_S(self) -> Ints:
        """Token id of each term."""
        return self.tokens_T[self.token_S]

    @property
    def token_count(self) -> int:
        """Number T of tokens that a forward pass computes."""
        return int(self.tokens_T.size)

    @property
    def term_count(self) -> int:
        """S, the sampled tokens that are trained: all but the forced ones."""
        return int(self.token_S.size)

    def choice_entropy(self, terms: int) -> float:
        """Return the mean entropy, in nats, at contexts after which different tokens were sampled; 0 without any.

        The mean of -log p over the tokens sampled after a context estimates the entropy there. Ints that every
        rollout sampled alike, such as those of a tool call's form, say nothing about exploration and are left out.

        Args:
            terms: number of terms that count: the first ones.
        """
        at_S, token_S = self.predicted_at_S[:terms], self.target_S[:terms]
        order = np.argsort(at_S, kind="stable")
        alike = np.split(order, np.flatnonzero(np.diff(at_S[order])) + 1)
        entropies = [-self.behaviour_logprobs_S[some].mean() for some in alike if np.unique(token_S[some]).size > 1]
        return float(np.mean(entropies)) if entropies else 0.0


@dataclass(frozen=True)
class TreeLayout:
    """The tokens of trees as arrays, and the place of each node in them."""

    trees: Sequence[TokenTree]
    tokens_T: Ints
    positions_T: Ints
    parent_T: Ints
    end_T: Ints
    tree_starts: tuple[int, ...]
    first: Sequence[Mapping[NodeId, int]]
    """For each tree, the packed index of each node's first token."""

    def path(self, tree: int, node: NodeId) -> Ints:
        """Return the packed indices of all tokens from the root of tree number `tree` to the end of a node."""
        nodes, first = self.trees[tree].nodes, self.first[tree]
        runs = [np.arange(first[n], first[n] + nodes[n].tokens.size) for n in self.trees[tree].path(node)]
        return np.concatenate(runs).astype(np.int64)


def lay_out(trees: Sequence[TokenTree]) -> TreeLayout:
    """Lay out the tokens of `trees` one after the other; empty trees take no place.

    Raises:
        ValueError: there is no token.
    """
    tokens: list[Ints] = []
    positions: list[Ints] = []
    parents: list[Ints] = []
    ends: list[Ints] = []
    starts: list[int] = []
    firsts: list[Mapping[NodeId, int]] = []
    offset = 0
    for tree in trees:
        nodes = tree.nodes
        first: dict[NodeId, int] = {}  # depth first, as the nodes are laid out
        depth = {ROOT: 0}
        stack = list(reversed(nodes[ROOT].children.values()))
        if stack:
            starts.append(offset)
        while stack:
            node = stack.pop()
            run = nodes[node]
            size, above = run.tokens.size, depth[run.parent]
            first[node], depth[node] = offset, above + size
            before = np.arange(offset - 1, offset + size - 1, dtype=np.int64)
            # Nothing predicts the first token of a tree.
            before[0] = -1 if run.parent == ROOT else first[run.parent] + nodes[run.parent].tokens.size - 1
            tokens.append(run.tokens)
            positions.append(np.arange(above, above + size, dtype=np.int64))
            parents.append(before)
            offset += size
            stack.extend(reversed(run.children.values()))
        end = {node: begin + nodes[node].tokens.size for node, begin in first.items()}
        for node in reversed(first):
            parent = nodes[node].parent
            end[parent] = max(end.get(parent, 0), end[node])
        ends += [np.full(nodes[node].tokens.size, end[node], np.int64) for node in first]
        firsts.append(first)
    if not tokens:
        raise ValueError("nothing to train: no record in these trees has a sampled token that was not forced")
    return TreeLayout(
        trees,
        tokens_T=np.concatenate(tokens),
        positions_T=np.concatenate(positions),
        parent_T=np.concatenate(parents),
        end_T=np.concatenate(ends),
        tree_starts=tuple(starts),
        first=firsts,
    )


def pack(trees: Sequence[TokenTree]) -> PackedTrees:
    """Lay out `trees` one after the other.

    Raises:
        ValueError: there is nothing to train in any of the trees.
    """
    layout = lay_out(trees)
    terms: list[tuple[Ints, Floats, float, int, int, Ints]] = []
    for number, tree in enumerate(trees):
        for sampled in tree.sampled:
            record = sampled.record
            if record.trained_tokens == 0:
                continue
            # A record ends at the end of a node, so its output is the tail of the path there.
            path = layout.path(number, sampled.node)
            # Greedy calls report log-probabilities of temperature 1.
            temperature = record.temperature if record.temperature >= GREEDY_BELOW else 1.0
            where = path[-record.output_ids.size :]
            logprobs, versions = record.logprobs, record.versions_T
            if record.forced is not None:
                chosen = ~record.forced
                where, logprobs, versions = where[chosen], logprobs[chosen], versions[chosen]
            terms.append((where, logprobs, temperature, sampled.trajectory, len(terms), versions))
    if not terms:
        raise ValueError("nothing to train: no record in these trees has a sampled token that was not forced")
    sizes = [where.size for where, *_ in terms]
    return PackedTrees(
        tokens_T=layout.tokens_T,
        positions_T=layout.positions_T,
        parent_T=layout.parent_T,
        end_T=layout.end_T,
        tree_starts=layout.tree_starts,
        token_S=np.concatenate([term[0] for term in terms]),
        behaviour_logprobs_S=np.concatenate([term[1] for term in terms]).astype(np.float32),
        temperature_S=np.repeat(np.array([term[2] for term in terms], np.float32), sizes),
        trajectory_S=np.repeat(np.array([term[3] for term in terms], np.int64), sizes),
        call_S=np.repeat(np.array([term[4] for term in terms], np.int64), sizes),
        version_S=np.concatenate([term[5] for term in terms]),
    )
