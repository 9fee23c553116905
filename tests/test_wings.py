"""Each folder of a wing can be deleted: what is left works, and its commands say in one line what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"
WINGS = ("integrations", "apps", "recipes")
FOLDERS = sorted(
    f"{wing}/{folder.name}"
    for wing in WINGS
    for folder in (SRC / "mini_agentic_rl" / wing).iterdir()
    if folder.is_dir() and folder.name != "__pycache__"
)
COMMANDS = {point.name: point.module for point in metadata.entry_points(group="mini_agentic_rl.commands")}

TRAINING = """
import asyncio
import sys

sys.path.insert(0, sys.argv[1])
from letters import TASKS, CountLetters, Letters, algorithm

from mini_agentic_rl import SqlLightningStore, Trainer

store = SqlLightningStore("rollouts.db")
trained = algorithm(total_steps=2, tasks_per_step=2, samples_per_prompt=4)
Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=4, store=store, output_dir="run").fit(Letters(), TASKS)
print(trained.summary["steps"], len(asyncio.run(store.query_rollouts(limit=1))))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of `src`; its bytecode is kept, so that each run does not compile the package again."""
    folder = tmp_path_factory.mktemp("copy") / "src"
    shutil.copytree(SRC, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@contextmanager
def without(copy: Path, *folders: str) -> Iterator[None]:
    """Take folders out of the copied package for the duration of a block."""
    for number, name in enumerate(folders):
        (copy / "mini_agentic_rl" / name).rename(copy.parent / f"removed-{number}")
    try:
        yield
    finally:
        for number, name in enumerate(folders):
            (copy.parent / f"removed-{number}").rename(copy / "mini_agentic_rl" / name)


def run(src: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(src), "COLUMNS": "200"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("folders", [WINGS, *((folder,) for folder in FOLDERS)], ids=str)
def test_commands_of_deleted_folders_say_what_is_missing_and_all_others_are_listed(folders, copy, tmp_path):
    deleted = tuple(f"mini_agentic_rl.{folder.replace('/', '.')}." for folder in folders)
    missing = {name for name, module in COMMANDS.items() if f"{module}.".startswith(deleted)}
    with without(copy, *folders):
        done = run(copy, "-m", "mini_agentic_rl", "--help", cwd=tmp_path)
        refusals = {name: run(copy, "-m", "mini_agentic_rl", name, "somewhere", cwd=tmp_path) for name in missing}
    assert done.returncode == 0, done.stderr
    listed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("│ ") and len(line.split()) > 2}
    assert {"train", "serve", "eval", "store"} <= listed
    assert COMMANDS.keys() & listed == COMMANDS.keys() - missing
    for name, refusal in refusals.items():
        assert (refusal.returncode, refusal.stderr.count("\n")) == (2, 1), refusal.stderr
        assert name in refusal.stderr


def test_without_any_wing_a_model_is_trained_into_a_store(copy, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(TRAINING)
    with without(copy, *WINGS):
        done = run(copy, str(program), str(Path(__file__).parent / "algorithm"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["2", "1"]
