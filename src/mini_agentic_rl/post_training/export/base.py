"""A base model and its adapter in memory, in the precision to merge in, and the folder of the result.

An adapter is only added to unquantised weights. A base that is quantised in its checkpoint is dequantised first; of one
that was loaded in 4 bits for training only, the original weights are loaded.

A result is written completely or not at all, and replaces nothing unless `overwrite` is set.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from peft import PeftModel, get_peft_model_state_dict
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from ...errors import UserError
from ...files import (
    DamagedFileError,
    DiskFullError,
    damage,
    one_writer,
    read_json,
    reading,
    remove_leftovers,
    write_folder,
)
from ...logging import only_errors_of
from ...policy import (
    ADAPTER_CONFIG,
    AdapterMismatchError,
    ModelNotFoundError,
    adapter_folder,
    base_model_of,
    refuse_non_finite,
    resolve_model,
    saved_adapter_config,
)
from ..models import adapter_weights, task_of

logger = logging.getLogger(__name__)

_HUB_CACHE = re.compile(r"models--([^/]+?)--([^/]+)/snapshots/[^/]+/?$")
_SPARE = 1.3
"""Memory for merging and comparing a model in float32, as a multiple of the bytes of its weights."""


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
    trained_on = _config_of(folder).get("base_model_name_or_path") or base
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
    architecture = AutoModelForSequenceClassification if source.scores else AutoModelForCausalLM
    options = {"num_labels": 1} if source.scores else {}
    try:
        config: Any = AutoConfig.from_pretrained(source.path)
        saved: torch.dtype = config.dtype or torch.float32
        with only_errors_of("transformers"):  # the adapter brings the head of a reward model
            model: Any = architecture.from_pretrained(source.path, dtype=saved, **options)
    except Exception as error:  # damaged model files may raise anything
        raise ModelNotFoundError(f"{source.base!r} cannot be loaded: {_first_line(error)}", setting="model") from error
    if getattr(config, "quantization_config", None) is not None:
        logger.info("%s is quantised in its checkpoint: it is dequantised before the adapter is added", source.base)
        try:
            whole = model.dequantize()
        except (NotImplementedError, ValueError) as error:
            raise UserError(
                f"the quantised weights of {source.base} cannot be turned back ({_first_line(error)}), and nothing is "
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
    try:
        config = saved_adapter_config(folder, weights)
        wrapped = PeftModel.from_pretrained(model, str(folder), config=config)
    except UserError:
        raise
    except (RuntimeError, ValueError) as error:
        raise _mismatch(source, _first_line(error)) from error
    except Exception as error:  # peft trusts the configuration
        raise DamagedFileError(damage(folder, error), setting="adapter") from error
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
        raise UserError(f"the adapter cannot be merged: {_first_line(error)}") from error
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is not embeddings.weight:
        model.config.get_text_config().tie_word_embeddings = False  # the adapter changed only one of the two
    return model


def _config_of(folder: Path) -> dict[str, Any]:
    with reading(folder / ADAPTER_CONFIG, setting="adapter"):
        return read_json(folder / ADAPTER_CONFIG)


def _mismatch(source: Source, detail: str) -> AdapterMismatchError:
    trained_on = _config_of(source.adapter).get("base_model_name_or_path") or "an unnamed model"
    message = f"the adapter {source.adapter} was trained on {trained_on}, and does not fit {source.base}: {detail}"
    return AdapterMismatchError(message, setting="model")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_MODEL_CONFIGS = ("config.json", ADAPTER_CONFIG)
_MODEL_SUFFIXES = (".json", ".jinja", ".safetensors", ".gguf", ".model")
_MODEL_FILES = ("merges.txt", "vocab.txt", "README.md")


@contextmanager
def target_folder(chosen: Path | None, beside: Path, ending: str, *, overwrite: bool) -> Iterator[Path]:
    """Lock and yield the folder for a result: the chosen one, or `beside` with `ending` added to its name.

    Raises:
        UserError: the folder holds something that may not be replaced, or another process writes it.
    """
    source = beside.expanduser().absolute()
    target = (chosen or source.with_name(source.name + ending)).expanduser().absolute()
    with one_writer(target, beside=True):
        remove_leftovers(target.parent, target.name)
        _refuse_to_replace(target, overwrite=overwrite)
        with one_writer(target) if target.exists() else nullcontext():  # a run may be writing into it
            pass
        yield target


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


def publish(target: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill an empty temporary folder, which then takes the place of `target`.

    Raises:
        UserError: it cannot be written, or the disk is full.
        Exception: whatever else `write` raised; an earlier `target` is untouched.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_folder(target, write)
    except DiskFullError as error:
        raise UserError(
            f"no space is left for {target}: free some, or choose another folder", setting="output_dir"
        ) from error
    except PermissionError as error:
        raise UserError(f"{target} cannot be written: {error.strerror}", setting="output_dir") from error


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
