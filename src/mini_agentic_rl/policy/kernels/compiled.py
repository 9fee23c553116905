"""The C++ files of this folder as two libraries: bfloat16 with AVX512-BF16, and float32 with AVX2.

A wheel for x86-64 Linux contains both (`dev/release.py`). Otherwise the one that is used is compiled once by g++ and
kept in the cache. Without a compiler or the instructions, torch computes instead, as it does with
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
_HERE: Final = Path(__file__).parent
_FLAGS: Final = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-fopenmp", "-w")


class Variant(NamedTuple):
    """How the sources are compiled for tensors of one type."""

    name: str
    """The instructions, as messages name them."""
    flags: tuple[str, ...]
    """Explicit instruction sets instead of "native", because machines may share the cache folder. They also select the
    number type in vectors.h."""


VARIANTS: Final = {
    torch.bfloat16: Variant(
        "AVX512-BF16", ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512bf16", "-mfma")
    ),
    # Products are not contracted into sums: torch rounds between them.
    torch.float32: Variant("AVX2", ("-mavx2", "-mfma", "-ffp-contract=off")),
}
"""The libraries by the type of their tensors."""


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
    return device.type == "cpu" and head_size % 32 == 0 and head_size <= 512 and library(dtype) is not None


class Unused(NamedTuple):
    """Why torch computes instead of the C++ functions, and what to do about it."""

    reason: str
    advice: str


def why_unused(dtype: torch.dtype) -> Unused | None:
    """Return why there is no library for tensors of this type; None if there is. Compiles it if necessary."""
    if os.environ.get(KERNELS_VARIABLE) == "torch":
        return Unused(f"{KERNELS_VARIABLE}=torch", "unset it")
    if dtype not in VARIANTS:
        return Unused(f"they compute no {dtype}", "")
    if not _processor_has(dtype):
        return Unused(f"this processor or system has no {VARIANTS[dtype].name}", "")
    if library(dtype) is not None:
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
        self._functions: dict[torch.dtype, Any] = {}

    def __call__(self, dtype: torch.dtype, *arguments: Any) -> None:
        """Call the function for tensors of type `dtype`, without the interpreter lock."""
        function = self._functions.get(dtype)
        if function is None:
            lib = library(dtype)
            if lib is None:
                raise RuntimeError(f"{self._name} is not compiled here for {dtype}")
            function = self._functions[dtype] = getattr(lib, self._name)
            function.argtypes, function.restype = self._types, None
        function(*arguments)


def dense(tensor_HTD: Tensor) -> Tensor:
    """Return the tensor with the numbers of one head and token side by side, copied only where they are not."""
    return tensor_HTD if tensor_HTD.stride(2) == 1 else tensor_HTD.contiguous()


@functools.cache
def library(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Return the compiled library for tensors of this type; None if it is not available."""
    if os.environ.get(KERNELS_VARIABLE) == "torch" or not _processor_has(dtype):
        return None
    file = next(
        (folder / file_name(dtype) for folder in (_HERE, _cache()) if (folder / file_name(dtype)).exists()), None
    )
    try:
        if file is None:
            compiler = _compiler()
            if compiler is None:
                logger.info("no C++ compiler was found (g++): attention runs through torch, which is slower")
                return None
            logger.info("compiling for this processor, once (a few seconds)")
            make_private_folder(_cache())
            file = compile_library(compiler, dtype, _cache())
        return ctypes.CDLL(str(file))
    except OSError as error:
        logger.warning("the C++ attention cannot be used, torch's takes its place: %s", error)
        return None


def _processor_has(dtype: torch.dtype) -> bool:
    on_linux = sys.platform == "linux" and platform.machine() == "x86_64"
    threads = torch.backends.openmp.is_available()  # type: ignore[no-untyped-call]  # torch
    if not on_linux or not threads or dtype not in VARIANTS:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.cpu._is_avx512_bf16_supported())
    # Both include FMA. ATEN_CPU_CAPABILITY may lower it.
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def _compiler() -> str | None:
    # g++ uses the OpenMP library that torch loads; other compilers load a second one with a second thread pool.
    wanted = os.environ.get("CXX", "")
    return shutil.which(wanted if "g++" in wanted and "clang" not in wanted else "g++")


def file_name(dtype: torch.dtype) -> str:
    """Return the library's name, which contains a hash of sources and flags."""
    variant = VARIANTS[dtype]
    digest = hashlib.sha256(repr((_FLAGS, variant)).encode())
    for path in sorted(path for path in _HERE.iterdir() if path.suffix in (".cpp", ".h")):
        digest.update(path.read_bytes())
    return f"kernels-{variant.name.lower()}-{digest.hexdigest()[:16]}.so"


def _cache() -> Path:
    return cache_dir() / "kernels"


def compile_library(compiler: str, dtype: torch.dtype, folder: Path) -> Path:
    """Compile the library for tensors of this type into a folder, where it appears only when it is complete.

    Raises:
        OSError: it cannot be compiled or written.
    """
    target = folder / file_name(dtype)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        objects = [str(Path(scratch) / f"{name}.o") for name in _SOURCES]
        commands = [
            [compiler, *_FLAGS, *VARIANTS[dtype].flags, "-c", str(_HERE / name), "-o", made]
            for name, made in zip(_SOURCES, objects, strict=True)
        ]
        # Linked without OpenMP's library: its symbols are resolved from the one that torch has loaded.
        made = Path(scratch) / target.name
        for command in (*commands, [compiler, "-shared", *objects, "-o", str(made)]):
            done = run_child(command)
            if done.returncode:
                raise OSError(f"{compiler} failed: {done.stderr.strip()[-500:]}")
        os.replace(made, target)
    return target
