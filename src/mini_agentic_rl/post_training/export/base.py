"""A base model and its adapters in memory, in the precision to merge in, and the folder of the result.

Adapters are only added to unquantised weights. A base that is quantised in its checkpoint is dequantised first; one
that was loaded in 4 bits for training only has its original weights on disk, and those are loaded.

A result is written completely or not at all, and replaces nothing unless `overwrite` is set.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
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
    """A base and the adapters that are merged into it."""

    base: str
    """The base as it was named."""
    path: str
    """Its folder or hub id."""
    adapters: tuple[Path, ...]
    """Folders of the adapters."""
    scores: bool
    """True for a reward model, False for a language model."""

    @property
    def tokenizer(self) -> str:
        """Folder or id of the tokenizer: the one saved with the last adapter, else the base's."""
        saved = [str(folder) for folder in self.adapters if (folder / "tokenizer_config.json").is_file()]
        return saved[-1] if saved else self.path


def find_source(model: str | None, adapters: Sequence[Path], setting: str) -> Source:
    """Return what the settings name.

    Args:
        model: the base; None takes the one that the adapters were trained on.
        adapters: folders of adapters, or of runs that trained them.
        setting: the field that holds `adapters`, for errors.

    Raises:
        UserError: no adapter, adapters of different bases or kinds, or no such model.
    """
    folders = tuple(found_adapter(path, setting) for path in adapters)
    if not folders:
        raise UserError("give the folder of a trained adapter", setting=setting)
    kinds = {task_of(folder) == "SEQ_CLS" for folder in folders}
    if len(kinds) > 1:
        raise UserError("a reward model and a language model cannot be merged into one", setting=setting)
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("the same adapter is given twice", setting=setting)
    bases = dict.fromkeys([model] if model else [base_model_of(folder) for folder in folders])
    if len({Path(base).name for base in bases}) > 1:
        raise UserError(
            f"the adapters were trained on different models ({', '.join(bases)}): "
            "merge them one by one, or name the one that all are to be added into as `model`",
            setting=setting,
        )
    base = next(iter(bases))
    if adapter_folder(base) is not None:
        raise UserError(f"{base} is an adapter itself: give the model that it was trained on", setting="model")
    for folder in folders:
        trained_on = _config_of(folder).get("base_model_name_or_path") or base
        if Path(portable_name(resolve_model(base))).name != Path(portable_name(trained_on)).name:
            logger.warning("the adapter %s was trained on %r, not on %r (`model`)", folder, trained_on, base)
    return Source(base, resolve_model(base), folders, kinds.pop())


def found_adapter(path: Path, setting: str) -> Path:
    """Return the folder of the adapter at `path`.

    Raises:
        UserError: there is none.
    """
    folder = adapter_folder(path)
    if folder is None and (path / "config.json").is_file():
        raise UserError(f"{path} is a whole model already, with nothing to be merged", setting=setting)
    if folder is None:
        raise UserError(f"there is no adapter in {path} ({ADAPTER_CONFIG} is missing)", setting=setting)
    return folder


def portable_name(base: str) -> str:
    """Return what a base is called where its path is another one: the id under which the Hub's cache keeps it, a name
    as it is, of any other path the last part."""
    cached = _HUB_CACHE.search(base)
    if cached is not None:
        return f"{cached[1]}/{cached[2]}"
    is_path = Path(base).is_absolute() or base.startswith((".", "~")) or base.count("/") > 1
    return Path(base).name if is_path else base


def load_base(source: Source, device: torch.device) -> tuple[Any, torch.dtype]:
    """Load the bare model in the precision to merge in; return it with the number format in which it was saved.

    Raises:
        UserError: it cannot be loaded, or its quantised weights cannot be turned back.
    """
    config = _config(source)
    saved: torch.dtype = config.dtype or torch.float32
    quantised = getattr(config, "quantization_config", None) is not None
    architecture = AutoModelForSequenceClassification if source.scores else AutoModelForCausalLM
    options = {"num_labels": _labels(source)} if source.scores else {}
    disable_progress_bar()
    try:
        with only_errors_of("transformers"):  # a head that is new is the adapter's
            model: Any = architecture.from_pretrained(source.path, dtype=saved, **options)
    except Exception as error:  # of the damaged file of a model it may be any
        raise ModelNotFoundError(f"{source.base!r} cannot be loaded: {_first_line(error)}", setting="model") from error
    if quantised:
        model = _turned_back(model, source)
    return _prepared(model, device), saved


def attach(model: Any, source: Source) -> tuple[PeftModel, list[str]]:
    """Return the model with all adapters on, and their names.

    Raises:
        AdapterMismatchError: an adapter does not fit.
    """
    wrapped: Any = None
    names = [f"adapter{number}" for number in range(len(source.adapters))]
    for name, folder in zip(names, source.adapters, strict=True):
        weights = adapter_weights(folder)
        refuse_non_finite(weights, folder, setting="adapter")
        try:
            config = saved_adapter_config(folder, weights)
            if wrapped is None:
                wrapped = PeftModel.from_pretrained(model, str(folder), adapter_name=name, config=config)
            else:
                wrapped.add_adapter(name, config)
                wrapped.load_adapter(str(folder), adapter_name=name)
        except UserError:
            raise
        except (RuntimeError, ValueError) as error:
            raise _mismatch(folder, source, _first_line(error)) from error
        except Exception as error:  # peft trusts the configuration
            raise DamagedFileError(damage(folder, error), setting="adapter") from error
        expected = set(get_peft_model_state_dict(wrapped, adapter_name=name))
        found = set(weights)
        if expected != found:
            raise _mismatch(folder, source, f"{len(expected ^ found)} of its matrices belong elsewhere")
    heads = [folder for folder in source.adapters if _config_of(folder).get("modules_to_save")]
    if len(source.adapters) > 1 and heads:
        raise UserError(
            f"{heads[0]} replaces whole layers, so it is not merged together with others", setting="adapter"
        )
    wrapped.base_model.set_adapter(names)
    return wrapped.eval(), names


def merged(wrapped: PeftModel, names: Sequence[str]) -> PreTrainedModel:
    """Return the bare model with the adapters added in.

    Raises:
        UserError: a merged weight is no number.
    """
    try:
        model: PreTrainedModel = wrapped.merge_and_unload(safe_merge=True, adapter_names=list(names))
    except ValueError as error:
        raise UserError(f"the adapter cannot be merged: {_first_line(error)}") from error
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is not embeddings.weight:
        model.config.get_text_config().tie_word_embeddings = False  # where the adapter has changed one of the two
    return model


def _config(source: Source) -> Any:
    try:
        return AutoConfig.from_pretrained(source.path)
    except Exception as error:  # of a damaged file it may be any
        raise ModelNotFoundError(f"{source.base!r} cannot be loaded: {_first_line(error)}", setting="model") from error


def _turned_back(model: Any, source: Source) -> Any:
    """Return a quantised model in whole weights.

    Raises:
        UserError: the quantisation cannot be undone.
    """
    logger.info(
        "%s is quantised in its checkpoint: its weights are turned back before the adapter is added", source.base
    )
    try:
        whole = model.dequantize()
    except (NotImplementedError, ValueError) as error:
        raise UserError(
            f"the quantised weights of {source.base} cannot be turned back ({_first_line(error)}), and nothing is "
            "merged into quantised ones: give the original model",
            setting="model",
        ) from error
    return model if whole is None else whole


def _prepared(model: Any, device: torch.device) -> Any:
    """Move to the device, in float32 if there is room: there the sum is rounded once only, when it is saved."""
    needed = _SPARE * 4 * model.num_parameters()
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed < free:
        return model.float().to(device).eval()
    logger.warning(
        "merging in %s: %.0f GB would be needed for float32, and %.0f GB are free",
        model.dtype,
        needed / 1e9,
        free / 1e9,
    )
    return model.to(device).eval()


def _labels(source: Source) -> int:
    """Return the number of outputs of the adapter's own score head."""
    for folder in source.adapters:
        for name, tensor in adapter_weights(folder).items():
            if name.endswith(("score.weight", "classifier.weight")):
                return int(tensor.shape[0])
    raise UserError(f"{source.adapters[0]} is a reward model without its score head: train it again", setting="adapter")


def _config_of(folder: Path) -> dict[str, Any]:
    with reading(folder / ADAPTER_CONFIG, setting="adapter"):
        return read_json(folder / ADAPTER_CONFIG)


def _mismatch(folder: Path, source: Source, detail: str) -> AdapterMismatchError:
    trained_on = _config_of(folder).get("base_model_name_or_path") or "an unnamed model"
    return AdapterMismatchError(
        f"the adapter {folder} was trained on {trained_on}, and does not fit {source.base}: {detail}", setting="model"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


_OF_A_MODEL = ("config.json", ADAPTER_CONFIG)
_SUFFIXES = (".json", ".jinja", ".safetensors", ".gguf", ".model")
_NAMES = ("merges.txt", "vocab.txt", "README.md")


@contextmanager
def target_folder(chosen: Path | None, beside: Path, ending: str, *, overwrite: bool) -> Iterator[Path]:
    """Yield the folder for a result: the chosen one, or one beside what it is made from. Nobody else writes it within.

    Raises:
        UserError: there is something in it already which may not be replaced, or another process writes it.
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
    if not target.exists() or not any(target.iterdir()):
        return
    if not overwrite:
        raise UserError(
            f"{target} is not empty: choose another folder, or give `overwrite` to replace it", setting="output_dir"
        )
    names = {path.name for path in target.iterdir()}
    if not names.intersection(_OF_A_MODEL) and not any(name.endswith(".gguf") for name in names):
        raise UserError(
            f"{target} holds no model that `overwrite` could replace: choose another folder", setting="output_dir"
        )
    foreign = sorted(path.name for path in target.iterdir() if not _is_of_a_model(path))
    if foreign:
        raise UserError(
            f"{target} holds {foreign[0]}, which no export wrote, and replacing the folder would delete it: choose "
            "another folder",
            setting="output_dir",
        )


def _is_of_a_model(path: Path) -> bool:
    """Return whether a file or folder is one that a model or an adapter is made of."""
    if path.is_dir():
        return (path / ADAPTER_CONFIG).is_file() or path.name.startswith(".")
    return path.suffix in _SUFFIXES or path.name in _NAMES or path.name.startswith(".")


def publish(target: Path, write: Callable[[Path], None]) -> None:
    """Fill the folder by `write`, which is given an empty one beside it; it appears when it is whole.

    Raises:
        UserError: it cannot be written, or the disk is full.
        Exception: whatever else `write` raised; what was there before is untouched.
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
