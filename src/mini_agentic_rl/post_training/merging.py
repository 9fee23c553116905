"""Merge an adapter into its base, and check that the result behaves like base and adapter.

An adapter is only added to unquantised weights. A base that is quantised in its checkpoint is dequantised first; of one
that was loaded in 4 bits for training only, the original weights are loaded.

The check: base and adapter sample greedily after a few prompts, and their logits are kept. The merged model then reads
the same tokens, once in memory and once as loaded from disk. Its greedy tokens must be the same, and its logits equal
up to rounding. A reward model scores a few answers instead.

A result is written completely or not at all, and replaces nothing unless `overwrite` is set.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import psutil
import torch
from peft import PeftModel, get_peft_model_state_dict
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GenerationConfig,
    PreTrainedModel,
)
from transformers.utils.logging import disable_progress_bar

from ..errors import UserError, first_line
from ..files import (
    DiskFullError,
    one_writer,
    read_json,
    reading,
    remove_leftovers,
    write_folder,
)
from ..gateway import ChatRenderer, load_tokenizer
from ..logging import only_errors_of
from ..metrics import ConsoleLogger
from ..policy import (
    ADAPTER_CONFIG,
    AdapterMismatchError,
    adapter_folder,
    base_model_of,
    cannot_load,
    refuse_non_finite,
    resolve_device,
    resolve_model,
    saved_adapter_config,
)
from .models import RUN_FILE, adapter_weights, run_file_of, task_of
from .rows import prompt_and_answer
from .settings import ExportFormat, MergeSettings, ResultSettings

logger = logging.getLogger(__name__)

_HUB_CACHE = re.compile(r"models--([^/]+?)--([^/]+)/snapshots/[^/]+/?$")
_SPARE = 1.3
"""Memory for merging and comparing a model in float32, as a multiple of the bytes of its weights."""
PROMPTS = (
    "What is 17 + 25? Explain in one sentence.",
    "Write a haiku about the sea.",
    "用一句话介绍一下北京。",
    "def fibonacci(n):",
)
_ERROR: Final = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Largest difference of two logits, relative to the largest logit, that rounding to a number format explains."""


@dataclass(frozen=True)
class Source:
    """A base and the adapter to merge into it."""

    base: str
    """The base as the user named it."""
    path: str
    """Its folder or Hub id."""
    adapter: Path
    scores: bool
    """True for a reward model, False for a language model."""

    @property
    def architecture(self) -> Any:
        """The `AutoModel…` class of base and result."""
        return AutoModelForSequenceClassification if self.scores else AutoModelForCausalLM

    @property
    def tokenizer(self) -> str:
        """Folder or id of the tokenizer: the one saved with the adapter, else the base's."""
        return str(self.adapter) if (self.adapter / "tokenizer_config.json").is_file() else self.path


def find_source(model: str | None, adapter: Path | None, setting: str) -> Source:
    """Return the base and the adapter that the settings name.

    Args:
        model: the base; None takes the one that the adapter was trained on.
        adapter: folder of an adapter, or of the run that trained it.
        setting: the field that holds `adapter`, for errors.

    Raises:
        UserError: no adapter, or no such model.
    """
    folder = find_adapter(adapter, setting)
    base = model or base_model_of(folder)
    if adapter_folder(base) is not None:
        raise UserError(f"{base} is an adapter itself: give the model that it was trained on", setting="model")
    path = resolve_model(base)
    trained_on = adapter_config(folder).get("base_model_name_or_path") or base
    if Path(portable_name(path)).name != Path(portable_name(trained_on)).name:
        logger.warning("the adapter %s was trained on %r, not on %r (`model`)", folder, trained_on, base)
    return Source(base, path, folder, task_of(folder) == "SEQ_CLS")


def find_adapter(path: Path | None, setting: str) -> Path:
    """Return the folder of the adapter at `path`.

    Raises:
        UserError: there is none.
    """
    if path is None:
        raise UserError("give the folder of a trained adapter", setting=setting)
    folder = adapter_folder(path)
    if folder is None and (path / "config.json").is_file():
        raise UserError(f"{path} is a whole model already, with nothing to be merged", setting=setting)
    if folder is None:
        raise UserError(f"there is no adapter in {path} ({ADAPTER_CONFIG} is missing)", setting=setting)
    return folder


def portable_name(base: str) -> str:
    """Return the name of a base on other machines: a Hub id as it is, of a path in the Hub's cache its id, of any other
    path the last part."""
    base = base.replace("\\", "/")  # it may have been trained on Windows
    cached = _HUB_CACHE.search(base)
    if cached is not None:
        return f"{cached[1]}/{cached[2]}"
    is_path = Path(base).is_absolute() or base.startswith((".", "~")) or base.count("/") > 1
    return Path(base).name if is_path else base


def load_base(source: Source, device: torch.device) -> tuple[Any, torch.dtype]:
    """Load the base in the precision to merge in; return it with the dtype in which it was saved.

    It is merged in float32 where memory allows, so that the sum is rounded only once, when it is saved.

    Raises:
        UserError: it cannot be loaded, or its weights cannot be dequantised.
    """
    disable_progress_bar()
    options = {"num_labels": 1} if source.scores else {}
    try:
        config: Any = AutoConfig.from_pretrained(source.path)
        saved: torch.dtype = config.dtype or torch.float32
        with only_errors_of("transformers"):  # the adapter brings the head of a reward model
            model: Any = source.architecture.from_pretrained(source.path, dtype=saved, **options)
    except Exception as error:  # damaged model files may raise anything
        raise cannot_load(source.base, error) from error
    if getattr(config, "quantization_config", None) is not None:
        logger.info("%s is quantised in its checkpoint: it is dequantised before the adapter is added", source.base)
        try:
            whole = model.dequantize()
        except (NotImplementedError, ValueError) as error:
            raise UserError(
                f"the quantised weights of {source.base} cannot be turned back ({first_line(error)}), and nothing is "
                "merged into quantised ones: give the original model",
                setting="model",
            ) from error
        model = model if whole is None else whole
    needed = _SPARE * 4 * model.num_parameters()
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed < free:
        model = model.float()
    else:
        logger.warning(
            "merging in %s: %.0f GB would be needed for float32, and %.0f GB are free",
            model.dtype,
            needed / 1e9,
            free / 1e9,
        )
    return model.to(device).eval(), saved


def attach(model: Any, source: Source) -> PeftModel:
    """Return the model with the adapter active.

    Raises:
        AdapterMismatchError: the adapter does not fit.
    """
    folder = source.adapter
    weights = adapter_weights(folder)
    refuse_non_finite(weights, folder, setting="adapter")
    with reading(folder, setting="adapter"):  # peft trusts the configuration
        config = saved_adapter_config(folder, weights)
        try:
            wrapped = PeftModel.from_pretrained(model, str(folder), config=config)
        except (RuntimeError, ValueError) as error:
            raise _mismatch(source, first_line(error)) from error
    misplaced = set(get_peft_model_state_dict(wrapped)) ^ set(weights)
    if misplaced:
        raise _mismatch(source, f"{len(misplaced)} of its matrices belong elsewhere")
    return wrapped.eval()


def merged(wrapped: PeftModel) -> PreTrainedModel:
    """Return the bare model with the adapter added in.

    Raises:
        UserError: a merged weight is not finite.
    """
    try:
        model: PreTrainedModel = wrapped.merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise UserError(f"the adapter cannot be merged: {first_line(error)}") from error
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is not embeddings.weight:
        model.config.get_text_config().tie_word_embeddings = False  # the adapter changed only one of the two
    return model


def adapter_config(folder: Path) -> dict[str, Any]:
    """Return the configuration of an adapter.

    Raises:
        UserError: it is damaged.
    """
    with reading(folder / ADAPTER_CONFIG, setting="adapter"):
        return read_json(folder / ADAPTER_CONFIG)


def _mismatch(source: Source, detail: str) -> AdapterMismatchError:
    trained_on = adapter_config(source.adapter).get("base_model_name_or_path") or "an unnamed model"
    message = f"the adapter {source.adapter} was trained on {trained_on}, and does not fit {source.base}: {detail}"
    return AdapterMismatchError(message, setting="model")


Sequences = Sequence[tuple[list[int], int]]
"""Token sequences, each with the length of its prompt; what follows was sampled (nothing for a reward model)."""


@dataclass(frozen=True)
class Difference:
    """How the logits of two models differ on the same tokens."""

    tokens: int
    """Number of sampled tokens."""
    tokens_equal: int
    """Number of positions at which both models would sample the same token."""
    max_logit_difference: float
    largest_logit: float
    """Largest absolute logit of the first model."""
    widest_gap: float
    """Where the greedy tokens differ: the largest logit difference, under the first model, between the two tokens."""


@torch.no_grad()
def sample(model: Any, prompts: Sequence[list[int]], tokens: int) -> Sequences:
    """Sample up to `tokens` tokens greedily after each prompt."""
    sequences = []
    greedy = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0)
    for prompt in prompts:
        ids = torch.tensor([prompt], device=model.device)
        ids = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=greedy)
        sequences.append((ids[0].tolist(), len(prompt)))
    return sequences


@torch.no_grad()
def logits_on(model: Any, sequences: Sequences) -> list[torch.Tensor]:
    """Return the logits [S, V] that predict the sampled tokens of each sequence, or the score [1, 1] of a reward model,
    in float32 on the CPU."""
    logits: list[torch.Tensor] = []
    for sequence, prompt_tokens in sequences:
        ids = torch.tensor([sequence], device=model.device)
        output: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        if output.dim() == 3:  # of a language model [1, T, V]
            output = output[0, prompt_tokens - 1 : -1]
        logits.append(output.float().cpu())
    return logits


def compare(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> Difference:
    """Return how the logits of two models differ."""
    tokens = equal = 0
    difference = largest = gap = 0.0
    for before_SV, after_SV in zip(before, after, strict=True):
        difference = max(difference, float((after_SV - before_SV).abs().max()))
        largest = max(largest, float(before_SV.abs().max()))
        if before_SV.shape[-1] == 1:  # a score
            continue
        sampled_S, best_S = before_SV.argmax(-1), after_SV.argmax(-1)
        rows_S = torch.arange(len(sampled_S))
        gap = max(gap, float((before_SV[rows_S, sampled_S] - before_SV[rows_S, best_S]).max()))
        tokens += len(sampled_S)
        equal += int((sampled_S == best_S).sum())
    return Difference(tokens, equal, difference, largest, gap)


def _require_same(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor], dtype: torch.dtype, what: str) -> None:
    """Refuse a model whose logits differ from those before; greedy tokens may differ only where rounding decides."""
    if not before:  # without `check` nothing was sampled
        return
    difference = compare(before, after)
    allowed = _ERROR[dtype] * max(1.0, difference.largest_logit)
    if difference.max_logit_difference <= allowed and difference.widest_gap <= 2 * allowed:
        return
    changed = difference.tokens - difference.tokens_equal
    raise UserError(
        f"{what} is not the same model: {changed} of {difference.tokens} greedy tokens differ, and logits by "
        f"{difference.max_logit_difference:.3g}, where rounding explains {allowed:.3g}. Nothing was written; "
        "look at the adapter and its base (without `check` it is written all the same)"
    )


def merge(settings: MergeSettings) -> dict[str, Any]:
    """Merge the adapter into its base and return a summary: output folder, size, and the result of the check.

    Raises:
        UserError: a setting cannot work, the adapter does not fit, or the merged model is not the same model.
    """
    source = find_source(settings.model, settings.adapter, "adapter")
    beside = settings.adapter or source.adapter
    return published(settings, beside, "merged", lambda folder: write_merged(source, folder, settings))


def write_merged(source: Source, folder: Path, settings: ResultSettings) -> dict[str, Any]:
    """Write the merged model into an empty folder, and return the result of the check.

    Raises:
        UserError: as `merge`.
    """
    device = resolve_device(settings.device)
    sequences: Sequences = []
    expected: list[torch.Tensor] = []
    effect: float | None = None
    difference: Difference | None = None
    with ConsoleLogger() as progress:
        progress.phase("merging", 5 if settings.check else 3)
        model, saved_dtype = load_base(source, device)
        working_dtype = model.dtype
        dtype = saved_dtype if settings.dtype == "auto" else getattr(torch, settings.dtype)
        wrapped = attach(model, source)
        tokenizer = load_tokenizer(source.tokenizer)
        progress.advance()
        if settings.check:
            renderer = ChatRenderer(tokenizer)
            if source.scores:
                sequences = [(_answered(renderer, *texts), 0) for texts in product(PROMPTS, repeat=2)]
            else:
                prompts = [renderer.render([{"role": "user", "content": text}]) for text in PROMPTS]
                sequences = sample(wrapped, prompts, settings.check_tokens)
            expected = logits_on(wrapped, sequences)
            with wrapped.disable_adapter():
                effect = compare(expected, logits_on(wrapped, sequences)).max_logit_difference
            if effect == 0.0:
                logger.warning("the adapter changes nothing: was it trained?")
            progress.advance()

        whole = merged(wrapped)
        _require_same(expected, logits_on(whole, sequences), working_dtype, "the merged model in memory")
        progress.advance()
        for parameter in whole.parameters():  # not the buffers: those are computed anew when a model is loaded
            parameter.data.copy_(parameter.data.to(dtype))
        rounded = logits_on(whole, sequences)
        _save(whole, folder, dtype, settings.max_shard_size)
        del model, wrapped, whole  # room for the model that is read back
        tokenizer.save_pretrained(folder)
        carry_run_file(source.adapter, folder)
        progress.advance()
        if settings.check:
            read_back = source.architecture.from_pretrained(folder, dtype=working_dtype).to(device).eval()
            written = logits_on(read_back, sequences)
            _require_same(rounded, written, working_dtype, "what was written")
            difference = compare(expected, written)
            progress.advance()
    dtype_name = str(dtype).removeprefix("torch.")
    half = dtype != torch.float32 and not source.scores  # the base of a reward adapter has a random head
    if half and difference is not None and effect and difference.max_logit_difference > effect / 2:
        logger.warning(
            "rounding to %s takes away much of what this adapter changes: `dtype=float32` keeps all of it", dtype_name
        )
    return {
        "base": source.base,
        "adapter": str(source.adapter),
        "reward_model": source.scores,
        "dtype": dtype_name,
        "adapter_effect": effect,
        "check": None if difference is None else asdict(difference),
    }


def _answered(renderer: ChatRenderer, prompt: str, answer: str) -> list[int]:
    """Return a conversation as a reward model scores it."""
    messages = {"prompt": [{"role": "user", "content": prompt}], "answer": [{"role": "assistant", "content": answer}]}
    prompt_ids, answer_ids = prompt_and_answer(renderer, messages, "answer")
    return prompt_ids + answer_ids


def _save(model: Any, folder: Path, dtype: torch.dtype, max_shard_size: str) -> None:
    model.to(dtype)
    model.config.dtype = dtype
    model.save_pretrained(folder, max_shard_size=max_shard_size)


def carry_run_file(adapter: Path, folder: Path) -> None:
    """Copy the run configuration of an adapter: the reward service reads from it where a score is taken."""
    run_file = run_file_of(adapter)
    if run_file is not None:
        shutil.copyfile(run_file, folder / RUN_FILE)


_MODEL_CONFIGS = ("config.json", ADAPTER_CONFIG)
_MODEL_SUFFIXES = (".json", ".jinja", ".safetensors", ".gguf", ".model")
_MODEL_FILES = ("merges.txt", "vocab.txt", "README.md")


def published(
    settings: ResultSettings, beside: Path, format: ExportFormat, write: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Let `write` fill an empty temporary folder, which then becomes the output folder; return a summary.

    Args:
        beside: names the output folder unless one is chosen: `beside` with `-FORMAT` added.
        write: fills the folder and returns further entries of the summary.

    Raises:
        UserError: the output folder holds something that may not be replaced, another process writes it, it cannot be
            written, or the disk is full.
        Exception: whatever else `write` raised; an earlier result is untouched.
    """
    started = time.monotonic()
    source = beside.expanduser().absolute()
    target = (settings.output_dir or source.with_name(f"{source.name}-{format}")).expanduser().absolute()
    summary: dict[str, Any] = {}
    with one_writer(target, beside=True):
        remove_leftovers(target.parent, target.name)
        _refuse_to_replace(target, overwrite=settings.overwrite)
        with one_writer(target) if target.exists() else nullcontext():  # a run may be writing into it
            pass
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_folder(target, lambda folder: summary.update(write(folder)))
        except DiskFullError as error:
            raise UserError(
                f"no space is left for {target}: free some, or choose another folder", setting="output_dir"
            ) from error
        except PermissionError as error:
            raise UserError(f"{target} cannot be written: {error.strerror}", setting="output_dir") from error
    return {
        "output_dir": str(target),
        "format": format,
        **summary,
        "bytes": sum(path.stat().st_size for path in target.rglob("*") if path.is_file()),
        "seconds": time.monotonic() - started,
    }


def _refuse_to_replace(target: Path, *, overwrite: bool) -> None:
    if target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file: choose a folder", setting="output_dir")
    paths = sorted(target.iterdir()) if target.exists() else []
    if not paths:
        return
    if not overwrite:
        raise UserError(
            f"{target} is not empty: choose another folder, or give `overwrite` to replace it", setting="output_dir"
        )
    if not any(path.name in _MODEL_CONFIGS or path.suffix == ".gguf" for path in paths):
        raise UserError(
            f"{target} holds no model that `overwrite` could replace: choose another folder", setting="output_dir"
        )
    for path in paths:
        hidden = path.name.startswith(".")
        if path.is_dir():
            belongs = hidden or (path / ADAPTER_CONFIG).is_file()
        else:
            belongs = hidden or path.suffix in _MODEL_SUFFIXES or path.name in _MODEL_FILES
        if not belongs:
            raise UserError(
                f"{target} holds {path.name}, which no export wrote, and replacing the folder would delete it: choose "
                "another folder",
                setting="output_dir",
            )
