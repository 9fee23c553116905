"""An example run as a person runs it: two steps on a tiny model that calls the calculator."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
from safetensors.numpy import load_file

from mini_agentic_rl import SqlLightningStore
from mini_agentic_rl.adapter import TraceToTokenTree, spans_to_records
from mini_agentic_rl.emitter import find_final_reward
from mini_agentic_rl.tokens import CompletionRecord, pack
from mini_agentic_rl.types import Rollout, Span

SAMPLES = 8


def save_tasks(path: Path) -> str:
    """Problems that the tiny model answers rightly every other time."""
    rows = [{"question": f"What is one plus one, number {row}?", "answer": "2"} for row in range(40)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


async def _rollouts(database: Path) -> list[tuple[Rollout, Sequence[Span]]]:
    store = SqlLightningStore(database)
    try:
        found = await store.query_rollouts()
        return [(rollout, await store.query_spans(rollout.rollout_id, "latest")) for rollout in found]
    finally:
        await store.close()


def _chosen(record: CompletionRecord) -> np.ndarray:
    """The sampled tokens at which the model had a choice: all, but where the request forces a tool call."""
    return record.output_ids if record.forced is None else record.output_ids[~record.forced]


def check_training(
    example: ModuleType,
    options: Sequence[str],
    model: str,
    tasks: str,
    folder: Path,
    monkeypatch,
    *,
    extends: bool = True,
) -> None:
    """Train two steps and look at all that was recorded.

    Args:
        extends: whether the agent continues its conversation from call to call, rather than wording it anew.
    """
    size = ("--steps", "2", "--tasks-per-step", "1", "--samples-per-prompt", str(SAMPLES), "--eval-size", "2")
    few = ("--sft-examples", "0", "--concurrency", str(SAMPLES))
    command = ["--model", model, "--dataset", tasks, "--output-dir", str(folder), *size, *few, *options]
    monkeypatch.setattr(sys, "argv", [f"{example.__name__}.py", *command])
    example.main()

    finished = asyncio.run(_rollouts(folder / "rollouts.db"))
    assert [rollout.status for rollout, _ in finished] == ["succeeded"] * len(finished)
    trained = [(rollout, spans) for rollout, spans in finished if rollout.mode == "train"]
    assert len(trained) == 2 * SAMPLES
    assert {find_final_reward(spans) for _, spans in trained} == {0.0, 1.0}
    versions: dict[int, set[int]] = {0: set(), 1: set()}
    two_turns = 0
    for rollout, spans in trained:
        records = spans_to_records(spans)
        versions[rollout.metadata["step"]] |= {record.version for record in records}
        two_turns += len(records) == 2
        for earlier, later in pairwise(records if extends else ()):
            whole = np.concatenate([earlier.prompt_ids, earlier.output_ids])
            np.testing.assert_array_equal(later.prompt_ids[: whole.size], whole)
        packed = pack([TraceToTokenTree().adapt(spans)])
        sampled = np.concatenate([_chosen(record) for record in records])
        np.testing.assert_array_equal(packed.tokens_T[packed.token_S], sampled)
    assert two_turns  # how many differs from run to run: requests are batched as they arrive
    first, second = versions[0], versions[1]
    assert len(first) == len(second) == 1
    assert first != second
    adapter = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert any(np.abs(values).max() > 0 for name, values in adapter.items() if "lora_B" in name)
