"""Load and save models and adapters. Adapters are saved as peft writes them.

Adapters can be added to a loaded model, for clients that train adapters on the same base.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from ..errors import MissingPackageError, UserError
from ..files import DamagedFileError, damage, read_json, reading
from ..logging import ignore_library_notices
from .attention import ATTENTION_NAME
from .errors import AdapterMismatchError, PolicyError, cannot_load
from .machine import bound_product_caches
from .model import DEFAULT_ADAPTER, PolicyModel
from .model_files import ADAPTER_CONFIG, adapter_folder, resolve_model
from .rank_group import RankGroup, ShardedBase
from .settings import Dtype, LoraSettings, Quantization

logger = logging.getLogger(__name__)

ADAPTER_WEIGHTS = "adapter_model.safetensors"


def resolve_device(device: str) -> torch.device:
    """Return the device of a name; `auto` is the first CUDA device, else the CPU.

    Raises:
        PolicyError: there is no such device here.
    """
    bound_product_caches()  # before any weights are loaded
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
            raise PolicyError(
                f"torch {torch.__version__} is a CPU build, which has no {device}: install a CUDA build (on Linux "
                "pip install --force-reinstall torch, elsewhere see https://pytorch.org/get-started/locally), or use "
                "`device=cpu`",
                setting="device",
            )
        raise PolicyError(f"torch sees no CUDA device for {device!r}: use `device=cpu`", setting="device")
    try:
        chosen = torch.device(device)
        if chosen.type not in ("cpu", "cuda"):
            torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, ImportError) as error:
        raise PolicyError(f"torch has no device {device!r} here: use `device=auto`", setting="device") from error
    return chosen


def resolve_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """Return the type of a name; `auto` is bfloat16 if the device multiplies it faster, else float32."""
    if dtype != "auto":
        return getattr(torch, dtype)  # type: ignore[no-any-return]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    if device.type == "cpu" and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()):
        return torch.bfloat16
    return torch.float32


def load_model(
    model: str | PreTrainedModel,
    *,
    lora: LoraSettings | None = None,
    adapter: str | Path | None = None,
    adapters: Mapping[str, str | Path | None] | None = None,
    fixed_adapters: Mapping[str, str | Path] | None = None,
    dtype: Dtype = "auto",
    device: str = "auto",
    quantization: Quantization = "none",
    trust_remote_code: bool = False,
    seed: int | None = None,
    shard_over: RankGroup | None = None,
) -> PolicyModel:
    """Load a model, ready for the engine and the learner.

    Args:
        model: "embedded", a folder, a hub id, or a loaded model (not copied). The folder of an adapter loads its base,
            and that adapter unless another one is given.
        lora: adapter to create; None trains every weight, unless adapters are given.
        adapter: folder of a saved adapter to continue.
        adapters: several adapters to train, by name: the folder of a saved one to continue, or None for a new one.
            None trains a single adapter named "default".
        fixed_adapters: folders of saved adapters that are only sampled with, by name.
        seed: seed of the new adapters' initial values; None uses torch's generator.
        shard_over: ranks that each keep a part of the base; None keeps it whole.

    Raises:
        ModelNotFoundError: no such model.
        AdapterMismatchError: an adapter does not fit this model.
        PolicyError: the device or quantisation is not available, or the adapters do not go together.
    """
    trained = {DEFAULT_ADAPTER: adapter} if adapters is None else dict(adapters)
    models_adapter = adapter_folder(model) if isinstance(model, str) else None
    trained = {name: models_adapter if folder is None else folder for name, folder in trained.items()}
    fixed = dict(fixed_adapters or {})
    if adapters is not None and adapter is not None:
        raise PolicyError("`adapter` and `adapters` exclude each other: give one of them")
    disable_progress_bar()
    target = resolve_device(device)
    if isinstance(model, str):
        options: dict[str, Any] = {"dtype": resolve_dtype(dtype, target), "trust_remote_code": trust_remote_code}
        base = _load_base(model, target if shard_over is None else torch.device("cpu"), quantization, options)
    else:
        base = model
    _check_adapter_names([*trained, *fixed], base)
    base.eval()
    # After the base is loaded, which may draw random numbers too.
    if seed is not None:
        torch.manual_seed(seed)
    if lora is None and all(folder is None for folder in trained.values()):
        if adapters is not None or fixed:
            raise PolicyError("adapters need a frozen base: give none under full training (`lora=None`)")
        if quantization != "none":
            raise PolicyError(
                "quantised weights cannot be trained in full: keep LoRA on (`lora_r`), or use `quantization=none`",
                setting="quantization",
            )
        base.requires_grad_(True)
        return PolicyModel(base)
    wrapped: Any = None
    for name, folder in {**trained, **fixed}.items():
        wrapped = _with_adapter(base, wrapped, name, None if folder is None else Path(folder).expanduser(), lora)
    shards: Any = None
    if shard_over is not None:
        # Gradients then flow through all layers, so that all ranks gather the same layers.
        base.enable_input_require_grads()
        backbone = getattr(base, base.base_model_prefix)
        shards = ShardedBase.cut(base, backbone, base.config.get_text_config().num_hidden_layers, shard_over)
    return PolicyModel(base, peft_model=wrapped, adapters=list(trained), fixed_adapters=list(fixed), shards=shards)


def _load_base(name: str, device: torch.device, quantization: Quantization, options: dict[str, Any]) -> PreTrainedModel:
    path = resolve_model(name)
    if quantization != "none":
        # bitsandbytes quantises while it loads onto the device; such a model cannot be moved afterwards.
        options["quantization_config"] = quantization_config(quantization, options["dtype"])
        options["device_map"] = {"": device}
    try:
        model = AutoModelForCausalLM.from_pretrained(path, attn_implementation=ATTENTION_NAME, **options)
    except Exception as error:  # a damaged model file may raise any error
        raise cannot_load(name, error) from error
    refuse_non_finite(dict(model.named_parameters()), name, setting="model")
    loaded: PreTrainedModel = model if quantization != "none" else model.to(device)
    return loaded


def save_weights(model: PolicyModel, folder: Path, adapter: str = DEFAULT_ADAPTER) -> None:
    """Write the adapter as plain peft reads it, or the whole model under full training."""
    folder.mkdir(parents=True, exist_ok=True)
    if model.peft_model is None:
        model.base.save_pretrained(folder)
        return
    # peft's model card is an empty template, and takes longer to write than a small adapter.
    model.peft_model.create_or_update_model_card = lambda _: None
    model.peft_model.save_pretrained(folder, selected_adapters=[adapter])
    if adapter != DEFAULT_ADAPTER:  # peft writes any other into a folder of its name
        for file in (folder / adapter).iterdir():
            file.replace(folder / file.name)
        (folder / adapter).rmdir()


def load_weights(model: PolicyModel, folder: Path, adapter: str = DEFAULT_ADAPTER) -> None:
    """Read back what `save_weights` wrote, in place.

    Raises:
        AdapterMismatchError: the file's tensors do not fit.
    """
    if model.peft_model is not None:
        _set_adapter_state(model.peft_model, read_weights(folder / ADAPTER_WEIGHTS), folder, adapter)
        return
    state: dict[str, torch.Tensor] = {}
    with reading(folder):
        for shard in sorted(folder.glob("*.safetensors")):
            state.update(read_weights(shard))
        missing = model.base.load_state_dict(state, strict=False).missing_keys
        tied = set(model.base.state_dict()) - set(dict(model.base.named_parameters()))
        if set(missing) - tied:
            raise KeyError(f"{len(missing)} tensors are missing")
        model.base.tie_weights()


def read_weights(file: Path, *, setting: str | None = None) -> dict[str, torch.Tensor]:
    """Return the tensors of a safetensors file, on the CPU.

    Raises:
        UserError: it is damaged, or holds a number that is not finite.
    """
    from safetensors.torch import load_file

    with reading(file, setting=setting):
        state: dict[str, torch.Tensor] = load_file(str(file))
    refuse_non_finite(state, file, setting=setting)
    return state


def refuse_non_finite(state: Mapping[str, torch.Tensor], file: Path | str, *, setting: str | None = None) -> None:
    """Refuse weights that are NaN or infinite.

    Raises:
        DamagedFileError: one of them is.
    """
    for name, tensor in state.items():
        if not tensor.is_floating_point() or not tensor.numel():
            continue
        # If any value is not finite, the minimum or the maximum is not. torch has neither for 8-bit numbers.
        wide = (tensor if tensor.element_size() > 1 else tensor.float()).detach()
        if not torch.isfinite(torch.stack([wide.amin(), wide.amax()])).all():
            raise DamagedFileError(
                f"{file} holds weights that are not finite ({name}): the file is damaged", setting=setting
            )


def quantization_config(quantization: Quantization, dtype: torch.dtype) -> Any:
    """Return transformers' configuration for loading weights in 4 or 8 bits and computing in `dtype`.

    Raises:
        PolicyError: bitsandbytes is not installed.
    """
    try:
        import bitsandbytes  # noqa: F401  # transformers would raise a longer message later
    except ImportError as error:
        raise MissingPackageError(f"{quantization}", "bitsandbytes", extra="quant", setting="quantization") from error
    from transformers import BitsAndBytesConfig

    if quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=dtype
    )


def _check_adapter_names(names: Sequence[str], base: PreTrainedModel) -> None:
    """Refuse names of adapters that cannot be used in folders, as model names and in peft's parameter names."""
    if not names:
        raise PolicyError("name at least one adapter to train", setting="adapters")
    # peft finds an adapter's weights by its name in parameter names; a ModuleDict refuses names of its methods.
    taken = {part for name, _ in base.named_parameters() for part in name.split(".")}
    taken |= {"base_layer", "base_model", *dir(torch.nn.ModuleDict())}
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            raise PolicyError(f"an adapter cannot be named {name!r}: use letters, digits, - and _")
        if name in taken or name in "lora_" or "lora_" in name:
            raise PolicyError(f"an adapter cannot be named {name!r}: parts of the model have that name")
        if list(names).count(name) > 1:
            raise PolicyError(f"the adapter {name!r} is among both `adapters` and `fixed_adapters`: name it once")


def _with_adapter(
    base: PreTrainedModel, wrapped: Any | None, name: str, folder: Path | None, lora: LoraSettings | None
) -> Any:
    """Return `wrapped`, or a new wrapper of `base`, with one more adapter: the one saved in `folder`, or a new one."""
    lora = lora or LoraSettings()
    if folder is None:
        return _wrapped_with(base, wrapped, name, _new_adapter_config(lora), lora)
    if not (folder / ADAPTER_CONFIG).is_file():
        raise PolicyError(f"no adapter in {str(folder)!r}: {ADAPTER_CONFIG} is missing", setting="adapter")
    state = read_weights(folder / ADAPTER_WEIGHTS, setting="adapter")
    config = _saved_config(base, folder, state)
    try:
        wrapped = _wrapped_with(base, wrapped, name, config, lora)
    except ValueError as error:
        raise _mismatch(folder, str(error)) from error
    except Exception as error:  # peft trusts the configuration
        raise DamagedFileError(damage(folder / ADAPTER_CONFIG, error), setting="adapter") from error
    _set_adapter_state(wrapped, state, folder, name)
    return wrapped


def _wrapped_with(base: PreTrainedModel, wrapped: Any | None, name: str, config: Any, lora: LoraSettings) -> Any:
    from peft import get_peft_model

    # Dropout is a setting of this run, not of the saved adapter.
    config.lora_dropout = lora.dropout
    with warnings.catch_warnings():
        ignore_library_notices()
        if wrapped is None:
            return get_peft_model(base, config, adapter_name=name)
        wrapped.add_adapter(name, config)
        return wrapped


def _new_adapter_config(lora: LoraSettings) -> Any:
    """Return peft's configuration of a new adapter, which learns without dropout."""
    from peft import LoraConfig

    targets = lora.target_modules if isinstance(lora.target_modules, str) else list(lora.target_modules)
    return LoraConfig(r=lora.r, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")


def _saved_config(base: PreTrainedModel, folder: Path, state: Mapping[str, torch.Tensor]) -> Any:
    with reading(folder / ADAPTER_CONFIG, setting="adapter"):
        config = saved_adapter_config(folder, state)
        if config.base_model_name_or_path is not None and not isinstance(config.base_model_name_or_path, str):
            raise TypeError("base_model_name_or_path is no text")
        if type(config.r) is not int or not 0 < config.r <= 1 << 16:
            raise ValueError(f"r={config.r!r} is no rank")
    if config.task_type == "SEQ_CLS":
        raise PolicyError(
            f"{str(folder)!r} is a reward model, which scores answers and writes none: give another adapter",
            setting="adapter",
        )
    # peft saves adapters in inference mode, which would freeze this one.
    config.inference_mode = False
    trained_on, here = config.base_model_name_or_path or "", base.name_or_path
    if trained_on and here and PureWindowsPath(trained_on).name != PureWindowsPath(here).name:
        logger.warning("the adapter %s was trained on %r, not on %r", folder, trained_on, here)
    config.base_model_name_or_path = here or trained_on
    return config


def _set_adapter_state(wrapped: Any, state: dict[str, torch.Tensor], folder: Path, adapter: str) -> None:
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    expected = {name: tensor.shape for name, tensor in get_peft_model_state_dict(wrapped, adapter_name=adapter).items()}
    saved = {name: tensor.shape for name, tensor in state.items()}
    if expected != saved:
        name = next((n for n in sorted({*expected, *saved}) if expected.get(n) != saved.get(n)), "")
        detail = f"{name} is {tuple(saved.get(name, ()))} there and {tuple(expected.get(name, ()))} here"
        raise _mismatch(folder, detail)
    set_peft_model_state_dict(wrapped, state, adapter_name=adapter)


def _mismatch(folder: Path, detail: str) -> AdapterMismatchError:
    with reading(folder / ADAPTER_CONFIG, setting="adapter"):
        config = read_json(folder / ADAPTER_CONFIG)
    trained_on = config.get("base_model_name_or_path") or "an unnamed model"
    text = f"{str(folder)!r} was trained on another base model, {trained_on}: give that one as `model` ({detail})"
    return AdapterMismatchError(text, setting="adapter")


def add_adapter(model: PolicyModel, name: str, lora: LoraSettings, *, seed: int | None = None) -> None:
    """Add a new adapter, to be trained by its own `Learner`. On the torch thread.

    Args:
        seed: seed of its initial values; None uses torch's generator.

    Raises:
        PolicyError: the weights are trained in full, the name is taken, or no layer matches `target_modules`.
    """
    if model.peft_model is None:
        raise PolicyError("adapters need a frozen base, but here the weights are trained in full")
    if name in model.versions:
        raise PolicyError(f"there is an adapter named {name!r} already")
    _check_adapter_names([name], model.base)
    model.unpack()
    # Other users of torch's generator get the same numbers as without the adapter.
    with torch.random.fork_rng(devices=[] if model.device.type == "cpu" else [model.device]):
        if seed is not None:
            torch.manual_seed(seed)
        with warnings.catch_warnings():
            ignore_library_notices()
            try:
                model.peft_model.add_adapter(name, _new_adapter_config(lora))
            except ValueError as error:
                model.peft_model.peft_config.pop(name, None)
                raise PolicyError(f"no adapter can be added: {error}", setting="target_modules") from error
    model.adapters = (*model.adapters, name)
    model.versions[name] = 0


_PART: Final = r"(?:[\w.^$-]|\\[.d])*"
_QUICK: Final = re.compile(rf"{_PART}(?:[*+]{_PART})?")
"""Patterns that match in at most quadratic time."""
_MOST_REPETITIONS: Final = 100


def saved_adapter_config(folder: Path, weights: Iterable[str]) -> Any:
    """Return peft's configuration of the adapter in a folder, without slow patterns.

    peft matches names of layers against regular expressions of the configuration, some of which take exponential time.
    The adapted layers are known from the names of the weights, so a pattern for them is replaced by a list. Other
    patterns may be names with at most one repetition.

    Args:
        weights: names of the adapter's weights.

    Raises:
        UserError: a pattern could be slow to match.
        Exception: any error of peft for a configuration that it cannot read.
    """
    from peft import LoraConfig

    config = LoraConfig.from_pretrained(str(folder))
    targets = config.target_modules
    is_pattern = isinstance(targets, str) and targets.lower() != "all-linear"
    if is_pattern or isinstance(config.exclude_modules, str) or config.layers_pattern:
        layers = (name.removeprefix("base_model.model.").partition(".lora_") for name in weights)
        config.target_modules = {layer for layer, separator, _ in layers if separator}
        config.exclude_modules = config.layers_pattern = config.layers_to_transform = None
    repeated = 0
    for setting in ("modules_to_save", "rank_pattern", "alpha_pattern"):
        for pattern in getattr(config, setting) or ():
            repeated += "*" in pattern or "+" in pattern
            if not _QUICK.fullmatch(pattern) or repeated > _MOST_REPETITIONS:
                raise UserError(
                    f"{folder}: `{setting}` has the pattern {pattern[:100]!r}, which could take long to match: write "
                    "names of layers",
                    setting="adapter",
                )
    return config


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write what `torch.load` reads with `weights_only`.

    Raises:
        OSError: the file cannot be written; it may be the cause or context of an error of torch.
    """
    with path.open("wb") as file:  # given a path, torch drops the reason of a failure
        torch.save(dict(state), file)
