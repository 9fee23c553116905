"""The C++ files of this folder as a library.

A wheel for x86-64 Linux contains the compiled library (`dev/release.py`). Otherwise it is compiled once by g++ and kept
in the cache. Without a compiler or without AVX512-BF16, torch computes instead, as it does with
`MINI_AGENTIC_RL_KERNELS=torch`. Only the speed and the rounding differ.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ...config import KERNELS_VARIABLE, cache_dir
from ...files import make_private_folder
from ...processes import run_child

logger = logging.getLogger(__name__)

_SOURCES: Final = ("sampling.cpp", "trees.cpp", "layers.cpp", "adapters.cpp", "head.cpp", "draws.cpp")
_HEADERS: Final = ("product.h", "softmax.h", "dots.h", "layers.h", "linears.h", "paged.h")
_HERE: Final = Path(__file__).parent
# The instructions by name and not "native": machines may share the cache folder.
_FLAGS: Final = (
    *("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-fopenmp", "-w"),
    *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma"),
)


class Heads(ctypes.Structure):
    """Numbers of query heads and key heads, and their size."""

    _fields_ = [("query", ctypes.c_int64), ("key", ctypes.c_int64), ("size", ctypes.c_int64)]


class Strided(ctypes.Structure):
    """A tensor [H, T, D] whose numbers of one head and token lie side by side."""

    _fields_ = [("data", ctypes.c_void_p), ("head", ctypes.c_int64), ("token", ctypes.c_int64)]

    @classmethod
    def of(cls, tensor_HTD: Tensor) -> Strided:
        """Return the tensor as the C++ functions take it; it must outlive the call."""
        return cls(tensor_HTD.data_ptr(), tensor_HTD.stride(0), tensor_HTD.stride(1))


def usable(dtype: torch.dtype, device: torch.device, head_size: int = 32) -> bool:
    """Return True if the C++ attention computes with tensors of this kind here. Head sizes are multiples of 32."""
    fits = dtype == torch.bfloat16 and device.type == "cpu" and head_size % 32 == 0 and head_size <= 512
    return fits and library() is not None


class Unused(NamedTuple):
    """Why torch computes instead of the C++ functions, and what to do about it."""

    reason: str
    advice: str


def why_unused() -> Unused | None:
    """Return why the library cannot be used; None if it can. Compiles it if necessary."""
    if os.environ.get(KERNELS_VARIABLE) == "torch":
        return Unused(f"{KERNELS_VARIABLE}=torch", "unset it")
    if not _processor_has_it():
        return Unused("this processor or system has no AVX512-BF16", "")
    if library() is not None:
        return None
    if _compiler() is None:
        return Unused("no C++ compiler was found", "install g++, as by `apt-get install g++`")
    return Unused("it could not be compiled or loaded", f"remove {cache_dir() / 'kernels'}, and read the log")


class Kernel:
    """A C++ function, looked up when it is first called; `usable` is True where there is one.

    Addresses and counts are given as integers.
    """

    def __init__(self, name: str, *types: Any) -> None:
        """
        Args:
            types: those of its arguments, ctypes'.
        """
        self._name, self._types = name, types
        self._function: Any = None

    def __call__(self, *arguments: Any) -> None:
        """Call the function without the interpreter lock."""
        if self._function is None:
            lib = library()
            if lib is None:
                raise RuntimeError(f"{self._name} is not compiled here")
            self._function = getattr(lib, self._name)
            self._function.argtypes, self._function.restype = self._types, None
        self._function(*arguments)


def dense(tensor_HTD: Tensor) -> Tensor:
    """Return the tensor with the numbers of one head and token side by side, copied only where they are not."""
    return tensor_HTD if tensor_HTD.stride(2) == 1 else tensor_HTD.contiguous()


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return the compiled library; None if it is not available."""
    if os.environ.get(KERNELS_VARIABLE) == "torch" or not _processor_has_it():
        return None
    file = next((path for path in (_HERE / _file_name(), _cached()) if path.exists()), None)
    try:
        if file is None:
            compiler = _compiler()
            if compiler is None:
                logger.info("no C++ compiler was found (g++): attention runs through torch, which is slower")
                return None
            logger.info("compiling for this processor, once (a few seconds)")
            file = _cached()
            make_private_folder(file.parent)
            compile_library(compiler, file)
        return ctypes.CDLL(str(file))
    except OSError as error:
        logger.warning("the C++ attention cannot be used, torch's takes its place: %s", error)
        return None


def _processor_has_it() -> bool:
    on_linux = sys.platform == "linux" and platform.machine() == "x86_64"
    threads = torch.backends.openmp.is_available()  # type: ignore[no-untyped-call]  # torch
    return on_linux and bool(threads) and bool(torch.cpu._is_avx512_bf16_supported())


def _compiler() -> str | None:
    # g++ uses the OpenMP library that torch loads; other compilers load a second one with a second thread pool.
    wanted = os.environ.get("CXX", "")
    return shutil.which(wanted if "g++" in wanted and "clang" not in wanted else "g++")


def _file_name() -> str:
    """Return the library's name, which contains a hash of sources and flags."""
    digest = hashlib.sha256(repr(_FLAGS).encode())
    for name in (*_SOURCES, *_HEADERS):
        digest.update((_HERE / name).read_bytes())
    return f"kernels-{digest.hexdigest()[:16]}.so"


def _cached() -> Path:
    return cache_dir() / "kernels" / _file_name()


def compile_library(compiler: str, target: Path) -> None:
    """Compile the library to a file, which appears only when it is complete.

    Raises:
        OSError: it cannot be compiled or written.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        objects = [str(Path(scratch) / f"{name}.o") for name in _SOURCES]
        commands = [
            [compiler, *_FLAGS, "-c", str(_HERE / name), "-o", made]
            for name, made in zip(_SOURCES, objects, strict=True)
        ]
        # Linked without OpenMP's library: its symbols are resolved from the one that torch has loaded.
        made = Path(scratch) / target.name
        for command in (*commands, [compiler, "-shared", *objects, "-o", str(made)]):
            done = run_child(command)
            if done.returncode:
                raise OSError(f"{compiler} failed: {done.stderr.strip()[-500:]}")
        os.replace(made, target)
