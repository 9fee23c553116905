"""The JSON of the dashboard's pages, from the objects of a store. Pure functions."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...adapter import SHOWN, TrainedCalls, conversations, spans_to_records, text_of
from ...emitter import find_final_reward, find_reward_spans, get_rewards_from_span, is_rollout_reward
from ...semconv import AGL_LEARNER
from ...semconv import LearnerSpanAttributes as Key
from ...tokens import CompletionRecord, TokenTree
from ...types import Attempt, Rollout, Span
from .rollouts import RolloutRow, reason_of

logger = logging.getLogger(__name__)


# Texts of tokens, by the tokenizer of a run if it is on this computer. Nothing is downloaded, and torch is not needed.
#
# The tokenizer is in the run's folder beside its weights, or in the folder of the configured model, in the embedded
# model, or in the cache of the Hugging Face hub.


_FILE = "tokenizer.json"


class TokenTexts:
    """The texts of a vocabulary.

    Args:
        path: A `tokenizer.json`.

    Raises:
        Exception: the tokenizers library cannot read the file.
    """

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        self.name = str(path.parent.name)
        self._tokenizer = Tokenizer.from_file(str(path))
        self._texts: dict[int, str] = {}

    def of(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each id; a part of a character is U+FFFD."""
        new = [id_ for id_ in dict.fromkeys(ids) if id_ not in self._texts]
        decoded = self._tokenizer.decode_batch([[id_] for id_ in new], skip_special_tokens=False)
        self._texts.update(zip(new, decoded, strict=True))
        return [self._texts[id_] for id_ in ids]


def find_texts(folder: Path | None, config: Mapping[str, Any]) -> TokenTexts | None:
    """Return the texts of a run's tokens; None if its tokenizer is not on this computer.

    Args:
        folder: The folder of the run.
        config: The run's configuration.
    """
    for path in _candidates(folder, config):
        if path.is_file():
            try:
                return TokenTexts(path)
            except Exception as error:  # a damaged file, or one of a newer library: the ids are shown instead
                logger.warning("the tokenizer %s cannot be read: %s", path, error)
    return None


def _candidates(folder: Path | None, config: Mapping[str, Any]) -> Iterator[Path]:
    if folder is not None:
        yield folder / "adapter" / _FILE
        yield from (epoch / _FILE for epoch in sorted(folder.glob("epoch_*"), reverse=True))
    load = config.get("load")
    model = config.get("model") or (load.get("model") if isinstance(load, Mapping) else None)
    if not isinstance(model, str) or not model:
        return
    if model == "embedded":
        from ...policy import embedded_path

        yield embedded_path() / _FILE
    elif (Path(model).expanduser() / _FILE).is_file():
        yield Path(model).expanduser() / _FILE
    elif model.count("/") == 1 and not model.startswith((".", "/", "~")):
        from huggingface_hub import try_to_load_from_cache

        try:
            cached = try_to_load_from_cache(model, _FILE)
        except ValueError:  # not a valid name on the hub
            return
        if isinstance(cached, str):
            yield Path(cached)


# A group: its rollouts by advantage, and its token tree.
#
# The advantage is the reward minus the mean of the group, also divided by the standard deviation. The advantages of the
# training depend on its settings (baselines, shaping, credit), and are not recorded.


_ANSWER: Final = 4000
_NODE_TOKENS: Final = 48
_MAX_NODES: Final = 2000


def group_view(
    rows: Sequence[RolloutRow], spans: Mapping[str, Sequence[Span]], texts: TokenTexts | None
) -> dict[str, Any]:
    """Return the rollouts of a group, the best first, and their token tree.

    Args:
        rows: Rows of its rollouts.
        spans: Spans of the latest attempt of each rollout, by rollout id.
        texts: Texts of tokens; None without a tokenizer.
    """
    rewards = np.array([row["reward"] for row in rows if row["reward"] is not None], np.float64)
    mean, deviation = (float(rewards.mean()), float(rewards.std())) if rewards.size else (None, None)
    members: list[dict[str, Any]] = []
    for row in rows:
        of_rollout = spans.get(row["id"], ())
        reward_spans = find_reward_spans(of_rollout)
        parts = get_rewards_from_span(reward_spans[-1]) if reward_spans else []
        reward = row["reward"]
        advantage = None if reward is None or mean is None else reward - mean
        members.append(
            {
                **row,
                "advantage": advantage,
                "normalized": None if advantage is None or not deviation else advantage / deviation,
                "parts": [{"name": part.name[:200], "value": part.value} for part in parts],
                "answer": _answer(of_rollout),
            }
        )
    members.sort(key=lambda member: (member["reward"] is None, -(member["reward"] or 0.0)))
    why = None
    if len(rows) > 1 and rewards.size and float(np.ptp(rewards)) == 0.0:
        why = "all rewards of the group are equal, so none of its rollouts is better than another: no gradient"
    return {
        "rollouts": members,
        "mean": mean,
        "deviation": deviation,
        "why": why,
        "tree": tree_view(rows, spans, texts),
    }


def tree_view(
    rows: Sequence[RolloutRow], spans: Mapping[str, Sequence[Span]], texts: TokenTexts | None
) -> dict[str, Any]:
    """Return the nodes of a group's token tree, parents first, each with the rollouts that contain it."""
    tree = TokenTree()
    for number, row in enumerate(rows):
        for record in TrainedCalls().select(spans.get(row["id"], ())).records:
            tree.insert(record, number)
    through: dict[int, set[int]] = {}
    sampled: dict[int, int] = {}
    for call in tree.sampled:
        left = call.record.output_ids.size
        for node in reversed(tree.path(call.node)):
            through.setdefault(node, set()).add(call.trajectory)
            size = tree.nodes[node].tokens.size
            sampled[node] = max(sampled.get(node, 0), min(left, size))
            left = max(0, left - size)
    order: list[int] = []
    waiting = list(reversed(list(tree.nodes[0].children.values())))
    while waiting and len(order) < _MAX_NODES:
        node = waiting.pop()
        order.append(node)
        waiting += reversed(list(tree.nodes[node].children.values()))
    nodes = []
    for node in order:
        ids = tree.nodes[node].tokens
        begin = ids[:_NODE_TOKENS].tolist()
        rewards = [reward for number in through.get(node, ()) if (reward := rows[number]["reward"]) is not None]
        nodes.append(
            {
                "id": node,
                "parent": tree.nodes[node].parent,
                "tokens": int(ids.size),
                "sampled": sampled.get(node, 0),
                "text": None if texts is None else "".join(texts.of(begin)),
                "ids": begin[:12],
                "rollouts": [rows[number]["id"] for number in sorted(through.get(node, ()))],
                "reward": float(np.mean(rewards)) if rewards else None,
            }
        )
    total = sum(call.record.prompt_ids.size + call.record.output_ids.size for call in tree.sampled)
    return {"nodes": nodes, "tokens": tree.token_count, "unrolled": int(total), "left_out": len(waiting)}


def _answer(spans: Sequence[Span]) -> str:
    """Return the text of the last message of a rollout."""
    shown = conversations(spans, shown=_ANSWER)
    messages = shown[-1]["messages"] if shown else []
    return messages[-1]["content"]["text"] if messages else ""


# A rollout: attempts, conversations, rewards by component, spans.


_ATTRIBUTE: Final = 2000
_NUMBERS: Final = 16
_ATTRIBUTES: Final = 100


def rollout_view(
    rollout: Rollout, attempts: Sequence[Attempt], spans: Sequence[Span], *, shown: int = SHOWN
) -> dict[str, Any]:
    """Return the facts of a rollout, without its tokens.

    Args:
        rollout: The rollout.
        attempts: Its attempts, oldest first.
        spans: Spans of all its attempts, in the order of the store.
        shown: Most characters of one text.
    """
    latest = attempts[-1] if attempts else None
    latest_spans = [span for span in spans if latest is not None and span.attempt_id == latest.attempt_id]
    metadata = rollout.metadata or {}
    reason = reason_of(metadata, latest)
    return {
        "id": rollout.rollout_id,
        "status": rollout.status,
        "mode": rollout.mode,
        "start": rollout.start_time,
        "end": rollout.end_time,
        "resources": rollout.resources_id,
        "group": metadata.get("group"),
        "task": text_of(rollout.input, shown),
        "metadata": text_of(rollout.metadata, shown),
        "config": rollout.config.model_dump(mode="json"),
        "reward": find_final_reward(latest_spans),
        "rewards": _rewards(spans),
        "why": None if reason is None else reason[:SHOWN],
        "attempts": [_attempt(attempt, spans) for attempt in attempts],
        "conversations": conversations(spans, shown=shown),
        "spans": [_span(span) for span in spans],
    }


def _attempt(attempt: Attempt, spans: Sequence[Span]) -> dict[str, Any]:
    error = attempt.metadata.get("error")
    return {
        "id": attempt.attempt_id,
        "number": attempt.sequence_id,
        "status": attempt.status,
        "start": attempt.start_time,
        "end": attempt.end_time,
        "worker": attempt.worker_id,
        "heartbeat": attempt.last_heartbeat_time,
        "error": None if error is None else str(error)[:SHOWN],
        "spans": sum(span.attempt_id == attempt.attempt_id for span in spans),
    }


def _rewards(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """Return all rewards with their components; the last one is the rollout's."""
    rewards = []
    for span in find_reward_spans(spans):
        parts = [{"name": part.name[:200], "value": part.value} for part in get_rewards_from_span(span)]
        scope = "rollout" if is_rollout_reward(span) else "call"
        rewards.append({"attempt": span.attempt_id, "span": span.span_id, "scope": scope, "parts": parts})
    return rewards


def _span(span: Span) -> dict[str, Any]:
    attributes = list(span.attributes.items())
    return {
        "id": span.span_id,
        "parent": span.parent_id,
        "attempt": span.attempt_id,
        "number": span.sequence_id,
        "name": span.name[:300],
        "start": span.start_time,
        "end": span.end_time,
        "status": span.status.status_code,
        "description": None if span.status.description is None else span.status.description[:_ATTRIBUTE],
        "attributes": [[name[:300], _value(value)] for name, value in attributes[:_ATTRIBUTES]],
        "left_out": max(0, len(attributes) - _ATTRIBUTES),
        "events": [event.name[:300] for event in span.events[:20]],
    }


def _value(value: Any) -> str:
    """Return an attribute as a text of bounded length; of long lists the beginning."""
    if isinstance(value, list | tuple) and len(value) > _NUMBERS:
        begin = json.dumps(list(value[:_NUMBERS]), ensure_ascii=False, default=str)[:-1][:_ATTRIBUTE]
        return f"{begin}, … {len(value):,} in all]"
    text = text_of(value, _ATTRIBUTE)
    return text["text"] + (f" … ({text['more']:,} more characters)" if text["more"] else "")


# The tokens of a rollout, in one row for each leaf of its token tree.
#
# For a sampled token the store has the id, the log-probability after temperature, the policy version, and whether a
# constraint forced it; for a trained token also the learner's log-probability before the update, and the entropy.


MAX_TOKENS: Final = 20_000
"""Most tokens of a row; the last ones are kept."""


SeenNumbers = dict[tuple[str, str], Sequence[tuple[float, float]]]
"""The learner's log-probability and the entropy of each trained token, by attempt and call."""


def tokens_view(spans: Sequence[Span], marked: Sequence[str], texts: TokenTexts | None) -> dict[str, Any]:
    """Return the rows of tokens of the attempts among the spans.

    Args:
        spans: The spans.
        marked: Agents that the rollout marks as trainable.
        texts: Texts of tokens; None without a tokenizer.

    Returns:
        `rows`: each with its attempt, the ids `tokens`, their `texts`, the indexes `sampled` of the sampled tokens, and
        for each of these `logprob`, `version`, `trained`, `forced`, `temperature`, the number of its `call`, and the
        learner's log-probability (`learner`) and `entropy`, None if they are not recorded.
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
    """Return the learner's numbers of each call, by attempt and span id; the latest of several."""
    numbers: SeenNumbers = {}
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
            numbers[span.attempt_id, str(span_id)] = list(pairs)
            at += length
    return numbers


def _rows(
    records: Sequence[CompletionRecord], chosen: set[tuple[str, Any]], seen: SeenNumbers, texts: TokenTexts | None
) -> list[dict[str, Any]]:
    tree = TokenTree()
    for record in records:
        tree.insert(record)
    ends = [call.node for call in tree.sampled if not tree.nodes[call.node].children]
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
    for number, call in enumerate(tree.sampled, 1):
        if call.node in lengths:
            record = call.record
            start = lengths[call.node] - record.output_ids.size
            is_trained = (record.attempt_id, record.metadata["span_id"]) in chosen
            of_call = seen.get((record.attempt_id, str(record.metadata["span_id"])), ())
            numbers = iter(of_call if len(of_call) == record.trained_tokens else ())
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
                    "call": number,
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
