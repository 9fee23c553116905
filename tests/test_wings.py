"""Each folder of a wing can be deleted: what is left works, and its commands say in one line what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src"
PACKAGE = SRC / "mini_agentic_rl"
WINGS = ("integrations", "apps", "recipes")
FOLDERS = sorted(
    f"{wing}/{folder.name}"
    for wing in WINGS
    for folder in (PACKAGE / wing).iterdir()
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


def copy_without(folder: Path, *deleted: str) -> Path:
    """Copy the package into a folder, without some of its folders; files are hard links where that is possible."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SRC, folder / "src", copy_function=link, ignore=ignored)
    for name in deleted:
        shutil.rmtree(folder / "src" / "mini_agentic_rl" / name)
    return folder / "src"


def run(src: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(src), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("folder", FOLDERS)
def test_without_a_folder_its_commands_say_what_is_missing_and_all_others_are_there(folder, tmp_path):
    src = copy_without(tmp_path, folder)
    module = "mini_agentic_rl." + folder.replace("/", ".")
    missing = {name for name, place in COMMANDS.items() if f"{place}.".startswith(f"{module}.")}
    done = run(src, "-m", "mini_agentic_rl", "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    listed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("│ ") and len(line.split()) > 2}
    assert {"train", "serve", "eval", "store"} <= listed
    assert COMMANDS.keys() & listed == COMMANDS.keys() - missing
    for name in missing:
        refused = run(src, "-m", "mini_agentic_rl", name, "somewhere", cwd=tmp_path)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
        assert name in refused.stderr


def test_without_any_wing_a_model_is_trained_into_a_store(tmp_path):
    src = copy_without(tmp_path, *WINGS)
    program = tmp_path / "train.py"
    program.write_text(TRAINING)
    done = run(src, str(program), str(Path(__file__).parent / "algorithm"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["2", "1"]
