"""The memory of a training that is spread out: of each rank that learns, and of each server that samples for it.

A rank that does not sample holds neither a cache nor weights laid out for it. Sharded ranks (`shards.py`) hold a part
of each layer, embeddings and head whole, and the whole of two layers while they compute: the one at work and the one
that is fetched meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .memory_plan import MemoryPart, MemoryPlan, ModelShape, PlannedSettings, PlannedWork, plan_memory

_GATHERED_LAYERS = 2
_SERVER_TOKENS = 8192
"""Tokens of one of a server's forward passes: vLLM's `max_num_batched_tokens` for serving."""


@dataclass(frozen=True)
class Spread:
    """The processes among which the work of a step is divided evenly."""

    ranks: int = 1
    sharded: bool = False
    """True if each rank holds a part of the base's layers; servers then sample."""
    replicas: int = 0
    """Number of servers that sample; 0 lets each rank sample its share."""

    @property
    def samplers(self) -> int:
        """Number of processes that sample."""
        return self.replicas or self.ranks

    def of_rank(self, work: PlannedWork) -> PlannedWork:
        """Return the largest share of a rank."""
        return replace(work, tasks_per_step=_share(work.tasks_per_step, self.ranks))


def plan_rank(
    shape: ModelShape, work: PlannedWork, settings: PlannedSettings, spread: Spread, *, on_cpu: bool
) -> MemoryPlan:
    """Predict what one rank holds."""
    if spread.replicas:
        settings = replace(settings, samples_elsewhere=True)
    plan = plan_memory(shape, spread.of_rank(work), settings, on_cpu=on_cpu)
    parts = list(plan.parts)
    if spread.sharded and spread.ranks > 1:
        layer = shape.linear_weights // shape.layers * settings.dtype.itemsize
        whole = shape.other_weights * settings.dtype.itemsize
        parts = [
            replace(part, bytes=whole + _share(part.bytes - whole, spread.ranks)) if part.name == "weights" else part
            for part in parts
        ]
        parts.append(MemoryPart("layers gathered from other ranks", _GATHERED_LAYERS * layer, "always"))
    return replace(plan, parts=parts)


def plan_replica(
    shape: ModelShape, work: PlannedWork, settings: PlannedSettings, spread: Spread, *, versions: int
) -> MemoryPlan:
    """Predict what one server holds while it samples its share of a step with nothing waiting.

    Args:
        versions: adapters that it holds at once.
    """
    item = settings.dtype.itemsize
    of_task = replace(work, tasks_per_step=_share(work.tasks_per_step, spread.replicas))
    tokens = of_task.tasks_per_step * work.prompt_tokens + of_task.sampled_sequences * work.max_new_tokens
    widest = 3 * shape.intermediate + 4 * shape.hidden + shape.query_size + 2 * shape.key_size
    logits = 4 * shape.vocab * of_task.sampled_sequences
    parts = [
        MemoryPart("weights", item * (shape.linear_weights + shape.other_weights), "always"),
        MemoryPart("adapters", item * versions * settings.lora_r * shape.lora_ends, "always"),
        MemoryPart("keys and values", 2 * shape.layers * shape.key_size * item * tokens, "always"),
        MemoryPart("activations of sampling", item * widest * min(_SERVER_TOKENS, tokens) + logits, "always"),
    ]
    return MemoryPlan(settings, parts)


def adapter_bytes(shape: ModelShape, rank: int) -> int:
    """Return the size of an adapter's file: its weights are in float32."""
    return 4 * rank * shape.lora_ends


def _share(whole: int, among: int) -> int:
    return -(-whole // among)
