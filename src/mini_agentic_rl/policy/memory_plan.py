"""Predict the memory and the time of a training run, and choose settings that fit.

Sampling and learning take turns, so the peak is the shared memory plus the larger of what each needs alone. If sampling
runs ahead of learning, both are held together. Activations are computed from the layers' shapes and the number of
tokens that the learner's chunks keep alive at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from ..tokens import CompletionRecord, TokenTree, most_alive, pack
from .head import VOCAB_BLOCK
from .model import PolicyModel
from .sampling_attention import GATHERED
from .settings import Quantization
from .static_decoding import READ, step_size

Phase = Literal["always", "sampling", "learning"]

CPU_CHUNK: Final = 450
MOST_LEARNT_AT_ONCE: Final = 8192
"""Packed tokens of a forward-backward pass: on a CPU, and at most."""
_PROCESS_BYTES = 640 * 2**20
"""Interpreter and libraries of a process on the CPU."""
_HOLES = 0.5
"""Heap fragmentation of learning on the CPU, as a share of what the layers keep: glibc does not reuse the place of a
freed aligned buffer. Checkpointing leaves as much; with the C++ layers and checkpointing none was measured."""
_GATHERED_LAYERS = 2
_SERVER_TOKENS = 8192
"""Tokens of one of a server's forward passes: vLLM's `max_num_batched_tokens` for serving."""
_ENGINE_TOKENS, _MOST_ROWS, _BLOCK_SIZE = 1024, 256, 8
"""Tokens of one of the engine's forward passes, sequences that run at once, and tokens of a cache block, as
`EngineSettings` has them (`max_batch_tokens`, `max_running`, `block_size`)."""


@dataclass(frozen=True)
class LayerShape:
    """The sizes of a model's layers."""

    layers: int
    hidden: int
    intermediate: int
    query_size: int
    """Number of query heads times their size."""
    key_size: int
    """Number of key heads times their size."""

    @property
    def widest(self) -> int:
        """Number of values of a token that exist at once in a layer without a backward pass."""
        return 3 * self.intermediate + 4 * self.hidden + self.query_size + 2 * self.key_size

    @staticmethod
    def of_config(config: Any) -> LayerShape:
        """Read the sizes from a model's configuration in transformers."""
        text = config.get_text_config()
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        kv_heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        return LayerShape(
            layers=text.num_hidden_layers,
            hidden=text.hidden_size,
            intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
            query_size=text.num_attention_heads * size,
            key_size=kv_heads * size,
        )


@dataclass(frozen=True)
class ModelShape(LayerShape):
    """The parts of a model's shape that decide about memory."""

    vocab: int
    linear_weights: int
    """Number of weights in the layers' linear maps, without the head."""
    other_weights: int
    """Number of all other weights: embeddings, head, norms."""
    head_weights: int
    """Number of the head's weights, whether they are its own or the embedding's."""
    lora_ends: int
    """Sum over those linear maps of inputs plus outputs; an adapter of rank r has r times as many weights."""

    @classmethod
    def of(cls, path: str, *, trust_remote_code: bool = False) -> ModelShape:
        """Read the shape from the configuration of a model; no weight is loaded.

        Raises:
            OSError: there is no such model.
        """
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        # On the meta device, without memory: the parameters of the real classes are right for any architecture.
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
        head = model.get_output_embeddings()
        linears = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
        linear_weights = sum(m.weight.numel() for m in linears)
        text = config.get_text_config()
        return cls(
            **vars(LayerShape.of_config(config)),
            vocab=text.vocab_size,
            linear_weights=linear_weights,
            other_weights=sum(p.numel() for p in model.parameters()) - linear_weights,
            head_weights=text.vocab_size * text.hidden_size,
            lora_ends=sum(m.in_features + m.out_features for m in linears),
        )


@dataclass(frozen=True)
class PlannedWork:
    """The work of one step: what it samples and learns."""

    tasks_per_step: int
    samples_per_prompt: int
    prompt_tokens: int
    max_new_tokens: int
    """Tokens sampled in all the calls of a rollout together."""

    @property
    def sampled_sequences(self) -> int:
        """Number of rollouts in a step."""
        return self.tasks_per_step * self.samples_per_prompt

    @property
    def tokens(self) -> int:
        """Number of distinct tokens: each task's prompt once, and all that is sampled."""
        return self.tasks_per_step * self.prompt_tokens + self.sampled_sequences * self.max_new_tokens

    def divided(self, processes: int) -> PlannedWork:
        """Return the largest share of a process, if the tasks are divided among so many processes."""
        return replace(self, tasks_per_step=_share(self.tasks_per_step, processes))

    def tree(self) -> TokenTree:
        """Return the largest tree of a step: its tasks share no prompt, and its samples share no token."""
        logprobs = np.zeros(self.max_new_tokens, np.float32)
        records = []
        for tokens in np.split(np.arange(self.tokens), self.tasks_per_step):
            prompt, *outputs = np.split(tokens, range(self.prompt_tokens, tokens.size, self.max_new_tokens))
            records += [CompletionRecord(prompt, output, logprobs) for output in outputs]
        return TokenTree.of([record] for record in records)


@dataclass(frozen=True)
class Spread:
    """The processes among which the work of a step is divided evenly."""

    ranks: int = 1
    sharded: bool = False
    """True if each rank holds a part of the base's layers; servers then sample."""
    replicas: int = 0
    """Number of servers that sample; 0 lets each rank sample its share."""


@dataclass(frozen=True)
class PlannedSettings:
    """The settings that memory depends on."""

    dtype: torch.dtype
    quantization: Quantization = "none"
    lora_r: int = 8
    lora_dropout: float = 0.0
    checkpointing: bool = False
    max_batch_tokens: int = CPU_CHUNK
    head_rows: int = 256
    cache_mib: int = 768
    optimizer_8bit: bool = False
    cuda_graphs: bool = False
    """True if decode steps are recorded on a GPU: their buffers, and the cache, then stay while learning."""
    side_by_side: bool = False
    """True if sampling goes on while learning, so that the cache and the weights laid out for sampling stay."""
    samples_elsewhere: bool = False
    """True if servers sample."""
    compiled: bool = False
    """True if the C++ kernels are used, which keep less for the backward pass."""


@dataclass(frozen=True)
class MemoryPart:
    """A use of memory, and its phase."""

    name: str
    bytes: int
    phase: Phase


@dataclass(frozen=True)
class MemoryPlan:
    """The parts of a run under certain settings."""

    settings: PlannedSettings
    parts: Sequence[MemoryPart]

    @property
    def peak(self) -> int:
        """Peak in bytes."""
        sampling, learning = self._sum("sampling"), self._sum("learning")
        beside = self.settings.side_by_side and not self.settings.samples_elsewhere
        return self._sum("always") + (sampling + learning if beside else max(sampling, learning))

    def _sum(self, phase: Phase) -> int:
        return sum(part.bytes for part in self.parts if part.phase == phase)


def plan_memory(
    shape: ModelShape,
    work: PlannedWork,
    settings: PlannedSettings,
    *,
    on_cpu: bool,
    spread: Spread = Spread(),  # frozen
) -> MemoryPlan:
    """Predict the memory of a rank: of the process on the CPU, else of the device's allocator.

    A rank that does not sample holds no cache. Sharded ranks (`ShardedBase`) hold a part of each layer, the whole
    embeddings and head, and two whole layers while they compute.
    """
    if spread.replicas:
        settings = replace(settings, samples_elsewhere=True)
    work = work.divided(spread.ranks)
    samples = not settings.samples_elsewhere
    recorded = samples and settings.cuda_graphs and not on_cpu
    item = settings.dtype.itemsize
    # Tokens of a chunk, and of the chunks that wait for gradients of later ones.
    alive = most_alive(pack([work.tree()]), settings.max_batch_tokens)
    saved = _saved_per_token(shape, settings)
    # Adapters, their gradients and AdamW's two moments are always in float32.
    lora = settings.lora_r * shape.lora_ends
    # NF4 with nested absmax: 4 bits and 0.127 more a weight (Dettmers et al. 2023, section 3).
    per_weight = {"none": float(item), "8bit": 1.0, "4bit": (4 + 0.127) / 8}[settings.quantization]
    linear = _share(int(shape.linear_weights * per_weight), spread.ranks if spread.sharded else 1)
    parts = [
        MemoryPart("process", _PROCESS_BYTES if on_cpu else 0, "always"),
        MemoryPart("weights", linear + shape.other_weights * item, "always"),
        MemoryPart("adapter and its gradients", 2 * 4 * lora, "always"),
        MemoryPart("optimizer", 2 * (1 if settings.optimizer_8bit else 4) * lora, "always"),
    ]
    if samples:
        cache = settings.cache_mib * 2**20
        if on_cpu:  # unused pages take no memory
            cache = min(cache, _key_bytes(shape, settings) * work.tokens)
        parts.append(MemoryPart("keys and values", cache, "always" if recorded else "sampling"))
        if recorded:
            parts.append(MemoryPart("recorded decode steps", _recorded_bytes(shape, work, item), "always"))
        parts.append(MemoryPart("activations of sampling", _sampling_bytes(shape, work, settings), "sampling"))
        copied = settings.dtype == torch.float32 and settings.quantization == "none" and not settings.compiled
        if on_cpu and copied:
            packed = item * (shape.linear_weights + shape.head_weights)
            parts.append(MemoryPart("weights laid out for sampling", packed, "sampling"))
    parts.append(MemoryPart("activations of learning", _learning_bytes(shape, settings, alive), "learning"))
    parts.append(MemoryPart("head", _head_bytes(shape, settings), "learning"))
    if settings.lora_dropout:
        parts.append(MemoryPart("dropout", _dropout_bytes(shape, settings, alive, on_cpu=on_cpu), "learning"))
    if on_cpu and not (settings.compiled and settings.checkpointing):
        parts.append(MemoryPart("holes in the heap", int(_HOLES * shape.layers * alive * saved), "learning"))
    if spread.sharded and spread.ranks > 1:
        gathered = _GATHERED_LAYERS * (shape.linear_weights // shape.layers * item)
        parts.append(MemoryPart("layers gathered from other ranks", gathered, "always"))
    return MemoryPlan(settings, [part for part in parts if part.bytes])


def learning_chunk(model: PolicyModel) -> int:
    """Return the default number of tokens of a forward-backward pass: 450 on a CPU, more on a GPU.

    A CPU computes small passes as fast as large ones. On a GPU the host launches thousands of kernels for each pass,
    whatever its size, so a pass takes as many tokens as fit into a third of the free memory, at most 8,192. The rest is
    for the sampler's cache, and for chunks whose keys later chunks attend to.
    """
    if model.device.type != "cuda":
        return CPU_CHUNK
    shape = LayerShape.of_config(model.base.config)
    of_token = shape.layers * _saved_per_token(shape, PlannedSettings(model.dtype))
    free, _ = torch.cuda.mem_get_info(model.device)
    return max(CPU_CHUNK, min(MOST_LEARNT_AT_ONCE, free // (3 * of_token)))


def fitting_plan(
    shape: ModelShape,
    work: PlannedWork,
    settings: PlannedSettings,
    limit: int,
    *,
    on_cpu: bool,
    quantizes: bool,
    spread: Spread = Spread(),  # frozen
) -> MemoryPlan:
    """Return the plan of the fastest settings whose peak is at most `limit` bytes; where none fits, the smallest plan.

    In this order: a smaller cache, smaller chunks, checkpointing, no CUDA graphs, and 4-bit weights, which cost
    accuracy.

    Args:
        settings: initial settings.
        quantizes: True if 4-bit weights can be used.
    """
    quantizations: list[Quantization] = [settings.quantization]
    if quantizes and settings.quantization == "none":
        quantizations.append("4bit")
    smaller = [n for n in (4096, 2048, 1024, 512, 256, 128) if n < settings.max_batch_tokens]
    # From the fastest to the smallest: the last of these changes first.
    changes = product(
        quantizations,
        (True, False) if settings.cuda_graphs else (False,),
        (True,) if settings.checkpointing else (False, True),
        (settings.max_batch_tokens, *smaller),
        (settings.cache_mib, min(256, settings.cache_mib)),
    )
    plans = []
    for quantization, cuda_graphs, checkpointing, max_batch_tokens, cache_mib in changes:
        candidate = replace(
            settings,
            quantization=quantization,
            cuda_graphs=cuda_graphs,
            checkpointing=checkpointing,
            max_batch_tokens=max_batch_tokens,
            cache_mib=cache_mib,
        )
        plans.append(plan_memory(shape, work, candidate, on_cpu=on_cpu, spread=spread))
        if plans[-1].peak <= limit:
            return plans[-1]
    return min(plans, key=lambda plan: plan.peak)


def _key_bytes(shape: ModelShape, settings: PlannedSettings) -> int:
    """Return the bytes of a token's keys and values in all layers."""
    return 2 * shape.layers * shape.key_size * settings.dtype.itemsize


def _sampling_bytes(shape: ModelShape, work: PlannedWork, settings: PlannedSettings) -> int:
    # torch draws from float32 copies of the logits, C++ from the logits themselves.
    of_logit = settings.dtype.itemsize if settings.compiled else 3 * 4
    logits = of_logit * shape.vocab * min(work.sampled_sequences, _MOST_ROWS)
    prompts = work.tasks_per_step * work.prompt_tokens
    return settings.dtype.itemsize * shape.widest * min(_ENGINE_TOKENS, prompts + 1) + logits


def _recorded_bytes(shape: ModelShape, work: PlannedWork, item: int) -> int:
    """Return the bytes of the buffers and the scratch memory of decode steps in CUDA graphs, which all sizes share.

    What the driver keeps for each graph is not measured, and not counted.
    """
    width = _BLOCK_SIZE * step_size(1, work.prompt_tokens + work.max_new_tokens, _BLOCK_SIZE).blocks
    rows = max(1, min(_ENGINE_TOKENS, READ // width))
    read = rows * width
    # A slot and a place in the mask for each key that is read, keys and values of one gathering, and one layer's rows.
    gathered = 2 * shape.key_size * min(read, GATHERED)
    return 8 * read + item * (read + gathered + rows * (shape.widest + shape.hidden))


def _learning_bytes(shape: ModelShape, settings: PlannedSettings, alive: int) -> int:
    item, saved = settings.dtype.itemsize, _saved_per_token(shape, settings)
    # One layer's gradients, beside what is kept for all.
    gradients = 4 * settings.max_batch_tokens * (shape.intermediate + shape.hidden) * item
    if settings.checkpointing:
        # Each layer's input, the keys and values that later chunks look at, and one layer computed again.
        kept = alive * shape.layers * item * (shape.hidden + 2 * shape.key_size)
        return kept + min(alive, settings.max_batch_tokens) * saved + gradients
    return shape.layers * alive * saved + gradients


def _dropout_bytes(shape: ModelShape, settings: PlannedSettings, alive: int, *, on_cpu: bool) -> int:
    """Return the bytes that dropout keeps for the backward pass.

    For each linear map these are the adapter's dropped-out input in float32, and its mask (float32 on a CPU, one byte
    on a GPU). The shared inputs are not kept.
    """
    inputs = 5 * shape.hidden + shape.query_size + shape.intermediate
    shared = 2 * shape.hidden + shape.query_size + shape.intermediate
    tokens = min(alive, settings.max_batch_tokens) if settings.checkpointing else alive * shape.layers
    return tokens * (inputs * (4 + (4 if on_cpu else 1)) - shared * settings.dtype.itemsize)


def _saved_per_token(shape: LayerShape, settings: PlannedSettings) -> int:
    """Return the bytes that a layer keeps of a token for the backward pass: two residuals and their norms, queries,
    keys, values and the attention's output, and gate, up, their activation and product."""
    item = settings.dtype.itemsize
    if settings.compiled:
        # Rotated queries and keys, and no activation of gate beside its product.
        return item * (4 * shape.hidden + 2 * (shape.query_size + shape.key_size) + 3 * shape.intermediate)
    attention = 3 * shape.query_size + 4 * shape.key_size
    kept = item * (4 * shape.hidden + attention + 4 * shape.intermediate)
    # A norm of a 16-bit model is computed in float32.
    return kept + (2 * 4 * shape.hidden if item == 2 else 0)


def _head_bytes(shape: ModelShape, settings: PlannedSettings) -> int:
    logits = settings.head_rows * min(shape.vocab, VOCAB_BLOCK)
    # C++ writes the exponentials over the logits.
    return logits * settings.dtype.itemsize if settings.compiled else logits * (3 * 4 + settings.dtype.itemsize)


def plan_replica(
    shape: ModelShape, work: PlannedWork, settings: PlannedSettings, spread: Spread, *, versions: int
) -> MemoryPlan:
    """Predict the memory of a server that samples its share of a step at once.

    Args:
        versions: number of adapters that it holds.
    """
    item = settings.dtype.itemsize
    work = work.divided(spread.replicas)
    logits = 4 * shape.vocab * work.sampled_sequences
    activations = item * shape.widest * min(_SERVER_TOKENS, work.tokens) + logits
    parts = [
        MemoryPart("weights", item * (shape.linear_weights + shape.other_weights), "always"),
        MemoryPart("adapters", item * versions * settings.lora_r * shape.lora_ends, "always"),
        MemoryPart("keys and values", _key_bytes(shape, settings) * work.tokens, "always"),
        MemoryPart("activations of sampling", activations, "always"),
    ]
    return MemoryPlan(settings, parts)


def adapter_bytes(shape: ModelShape, rank: int) -> int:
    """Return the size of an adapter's file (float32)."""
    return 4 * rank * shape.lora_ends


def _share(whole: int, among: int) -> int:
    return -(-whole // among)


@dataclass(frozen=True)
class StepRates:
    """Rates of a process, measured with a model. The time is assumed to be proportional to the number of weights."""

    source: str
    """Machine and program of the measurement."""
    parameters: int
    """Number of weights of the measured model."""
    sampled: float
    """Sampled tokens a second of one process that samples."""
    learned: float
    """Packed tokens (prompts counted once for each task) a second of one rank that learns."""

    def of_model(self, parameters: int) -> StepRates:
        """Return the estimated rates of a model with so many weights."""
        factor = self.parameters / parameters
        return StepRates(self.source, parameters, self.sampled * factor, self.learned * factor)


_HERE: Final = "2 cores (AMD EPYC with AVX-512 and bfloat16 products), embedded model, bfloat16, 2026-11-23"
OWN_ON_CPU: Final = StepRates(f"{_HERE}: benchmarks/grpo_step.py, nothing else running", 134_515_008, 442, 563)
"""W1: 2,048 tokens sampled in 4.6 s, and 3,548 learned in 6.3 s."""
VLLM_ON_CPU: Final = StepRates(
    f"{_HERE}: benchmarks/sampling.py --peers, vLLM 0.32 with two threads, nothing else running", 134_515_008, 419, 563
)


@dataclass(frozen=True)
class StepSeconds:
    """The parts of a step."""

    sampling: float
    learning: float
    overlapped: bool = False
    """True if sampling goes on while learning does."""

    @property
    def total(self) -> float:
        """Seconds from one step to the next."""
        return max(self.sampling, self.learning) if self.overlapped else self.sampling + self.learning


def step_seconds(work: PlannedWork, spread: Spread, rates: StepRates, *, overlapped: bool) -> StepSeconds:
    """Predict the seconds of a step in which every rollout samples its maximum.

    Without waiting times of agents, publishing weights and summing gradients.
    """
    sampled = work.sampled_sequences * work.max_new_tokens
    samplers = spread.replicas or spread.ranks
    learned = work.divided(spread.ranks).tokens
    return StepSeconds(sampled / (rates.sampled * samplers), learned / rates.learned, overlapped)
