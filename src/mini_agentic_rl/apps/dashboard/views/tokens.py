"""The tokens of a rollout, in the rows that it is trained as: one for each end of its token tree.

Of a sampled token the store has the id, the log-probability after temperature, the policy version, and whether a
constraint left no choice; of one that was learnt from also the learner's log-probability before its update, and the
entropy. Where these are missing, the page says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ....adapter import TrainedCalls, spans_to_records
from ....semconv import AGL_LEARNER
from ....semconv import LearnerSpanAttributes as Key
from ....tokens import CompletionRecord, TokenTree
from ....types import Span
from .token_text import TokenTexts

MAX_TOKENS: Final = 20_000
"""Tokens of a row that are sent to a page, the last ones."""


SeenNumbers = dict[tuple[str, str], Sequence[tuple[float, float]]]
"""The learner's log-probability and the entropy of each trained token, by attempt and call."""


def tokens_view(spans: Sequence[Span], marked: Sequence[str], texts: TokenTexts | None) -> dict[str, Any]:
    """Return the rows of tokens of the attempts among the spans.

    Args:
        marked: agents that the rollout marks as trainable.
        texts: of tokens; None where no tokenizer was found.

    Returns:
        `rows`: each with its attempt, the ids `tokens`, their `texts`, and for each sampled one at `sampled` (its index
        in the row) its `logprob`, `version`, `trained`, `forced`, `temperature`, the number of its `call`, and what the
        learner saw, `learner` (its log-probability) and `entropy`, each None where that is not recorded.
        `left_out`: why calls are not trained.
    """
    selection = TrainedCalls().select(spans, marked)
    chosen = {(record.attempt_id, record.metadata["span_id"]) for record in selection.records}
    records = spans_to_records(spans)
    seen = _seen(spans)
    rows = []
    for attempt in dict.fromkeys(record.attempt_id for record in records):
        of_attempt = [record for record in records if record.attempt_id == attempt]
        rows += [{"attempt": attempt, **row} for row in _rows(of_attempt, chosen, seen, texts)]
    return {"rows": rows, "left_out": dict(selection.left_out), "tokenizer": None if texts is None else texts.name}


def _seen(spans: Sequence[Span]) -> SeenNumbers:
    """Return what learners saw of each call, by its attempt and the id of its span; of several the latest."""
    found: SeenNumbers = {}
    for span in spans:
        if span.name != AGL_LEARNER:
            continue
        facts = span.attributes
        lists = [facts.get(key) for key in (Key.SPAN_IDS, Key.LENGTHS, Key.LOGPROBS, Key.ENTROPIES)]
        if not all(isinstance(values, list | tuple) for values in lists):
            continue
        ids, lengths, logprobs, entropies = lists
        at = 0
        for span_id, length in zip(ids or (), lengths or (), strict=False):
            pairs = zip((logprobs or ())[at : at + length], (entropies or ())[at : at + length], strict=False)
            found[span.attempt_id, str(span_id)] = list(pairs)
            at += length
    return found


def _of_record(record: CompletionRecord, seen: SeenNumbers) -> Sequence[tuple[float, float]]:
    """Return what was seen of the trained tokens of a call, in order; nothing where their number is another."""
    found = seen.get((record.attempt_id, str(record.metadata["span_id"])), ())
    return found if len(found) == record.trained_tokens else ()


def _rows(
    records: Sequence[CompletionRecord], chosen: set[tuple[str, Any]], seen: SeenNumbers, texts: TokenTexts | None
) -> list[dict[str, Any]]:
    tree = TokenTree()
    for record in records:
        tree.insert(record)
    ends = [one.node for one in tree.sampled if not tree.nodes[one.node].children]
    return [_row(tree, node, chosen, seen, texts) for node in dict.fromkeys(ends)]


def _row(
    tree: TokenTree, end: int, chosen: set[tuple[str, Any]], seen: SeenNumbers, texts: TokenTexts | None
) -> dict[str, Any]:
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
            numbers = iter(_of_record(record, seen))
            for index in range(record.output_ids.size):
                forced = record.forced is not None and bool(record.forced[index])
                learner, entropy = (None, None) if forced else next(numbers, (None, None))
                sampled[start + index] = {
                    "learner": learner,
                    "entropy": entropy,
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
        for name in ("logprob", "version", "trained", "forced", "call", "temperature", "learner", "entropy")
    }
    return {
        "tokens": shown,
        "texts": None if texts is None else texts.of(shown),
        "left_out": skip,
        "sampled": [position - skip for position in positions],
        **facts,
    }
