"""The tokens of a rollout, in the rows that it is trained as: one for each end of its token tree.

Of a sampled token the store has the id, the log-probability after temperature, the policy version, and whether a
constraint left no choice. The learner's log-probability and the entropy of a token are kept by no run, so the page says
that they are not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...adapter import TrainedCalls, spans_to_records
from ...tokens import CompletionRecord, TokenTree
from ...types import Span
from .token_text import TokenTexts

MAX_TOKENS: Final = 20_000
"""Tokens of a row that are sent to a page, the last ones."""


def tokens_view(spans: Sequence[Span], marked: Sequence[str], texts: TokenTexts | None) -> dict[str, Any]:
    """Return the rows of tokens of the attempts among the spans.

    Args:
        marked: agents that the rollout marks as trainable.
        texts: of tokens; None where no tokenizer was found.

    Returns:
        `rows`: each with its attempt, the ids `tokens`, their `texts`, and for each sampled one at `sampled` (its index
        in the row) its `logprob`, `version`, `trained`, `forced`, `temperature` and the number of its `call`.
        `left_out`: why calls are not trained.
    """
    selection = TrainedCalls().select(spans, marked)
    chosen = {(record.attempt_id, record.metadata["span_id"]) for record in selection.records}
    records = spans_to_records(spans)
    rows = []
    for attempt in dict.fromkeys(record.attempt_id for record in records):
        of_attempt = [record for record in records if record.attempt_id == attempt]
        rows += [{"attempt": attempt, **row} for row in _rows(of_attempt, chosen, texts)]
    return {"rows": rows, "left_out": dict(selection.left_out), "tokenizer": None if texts is None else texts.name}


def _rows(
    records: Sequence[CompletionRecord], chosen: set[tuple[str, Any]], texts: TokenTexts | None
) -> list[dict[str, Any]]:
    tree = TokenTree()
    for record in records:
        tree.insert(record)
    ends = [one.node for one in tree.sampled if not tree.nodes[one.node].children]
    return [_row(tree, node, chosen, texts) for node in dict.fromkeys(ends)]


def _row(tree: TokenTree, end: int, chosen: set[tuple[str, Any]], texts: TokenTexts | None) -> dict[str, Any]:
    path = tree.path(end)
    lengths: dict[int, int] = {}
    tokens: list[int] = []
    for node in path:
        tokens += tree.nodes[node].tokens.tolist()
        lengths[node] = len(tokens)
    sampled: dict[int, dict[str, Any]] = {}
    for call, one in enumerate(tree.sampled, 1):
        if one.node in lengths:
            record = one.record
            start = lengths[one.node] - record.output_ids.size
            is_trained = (record.attempt_id, record.metadata["span_id"]) in chosen
            for index in range(record.output_ids.size):
                forced = record.forced is not None and bool(record.forced[index])
                sampled[start + index] = {
                    "logprob": float(record.logprobs[index]),
                    "version": record.version,
                    "trained": is_trained and not forced,
                    "forced": forced,
                    "call": call,
                    "temperature": record.temperature,
                }
    skip = max(0, len(tokens) - MAX_TOKENS)
    shown = tokens[skip:]
    positions = [position for position in sorted(sampled) if position >= skip]
    facts: Mapping[str, list[Any]] = {
        name: [sampled[position][name] for position in positions]
        for name in ("logprob", "version", "trained", "forced", "call", "temperature")
    }
    return {
        "tokens": shown,
        "texts": None if texts is None else texts.of(shown),
        "left_out": skip,
        "sampled": [position - skip for position in positions],
        **facts,
    }
