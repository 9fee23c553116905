"""Each folder of a wing can be deleted: what is left works, and its commands say in one line what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

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
trained = algorithm(total_steps=1, tasks_per_step=2, samples_per_prompt=2)
Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=4, store=store, output_dir="run").fit(Letters(), TASKS)
print(trained.summary["steps"], len(asyncio.run(store.query_rollouts(limit=1))))
"""


def missing_commands(folders: tuple[str, ...]) -> list[str]:
    """Return the commands of these folders."""
    deleted = tuple(f"mini_agentic_rl.{folder.replace('/', '.')}." for folder in folders)
    return [name for name, module in COMMANDS.items() if f"{module}.".startswith(deleted)]


WITH_COMMANDS = [folder for folder in FOLDERS if missing_commands((folder,))]
WITHOUT_COMMANDS = tuple(folder for folder in FOLDERS if folder not in WITH_COMMANDS)
CASES = {"wings": WINGS, "folders without a command": WITHOUT_COMMANDS, **{name: (name,) for name in WITH_COMMANDS}}
"""Folders that are deleted together: those without a command all at once, as the commands have to do without each."""

COMMANDS_WITHOUT = """
import gc, importlib, json, os, runpy, sys

def run_commands(lines):
    \"""Run commands one after another in a fork; return status, output and errors of each, and loaded modules.\"""
    pid = os.fork()
    if not pid:
        results = {}
        for line in lines:
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
            sys.argv = ["mini-agentic-rl", *line.split()]
            status = 1
            try:
                runpy.run_module("mini_agentic_rl", run_name="__main__")
            except SystemExit as end:
                status = end.code or 0
            sys.stdout.flush()
            sys.stderr.flush()
            results[line] = status, open("out").read(), open("err").read()
        with open("of_a_case", "w") as file:
            json.dump([results, list(sys.modules)], file)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, open("err").read()
    return json.load(open("of_a_case"))

package = sys.argv[1]
cases = json.loads(sys.argv[2])
sys.path.insert(0, os.path.dirname(package))
loaded = run_commands(["--help"])[1]
apart = tuple(f"mini_agentic_rl.{room}." for room in ("cli", "commands", *json.loads(sys.argv[3])))
for name in loaded:  # the forks share what they all import, but for the wings and the commands, which look for them
    if not f"{name}.".startswith(apart):
        try:
            importlib.import_module(name)
        except Exception:
            pass
gc.freeze()
results = {}
for case, (folders, missing) in cases.items():
    for number, folder in enumerate(folders):
        os.rename(f"{package}/{folder}", f"removed-{number}")
    results[case] = run_commands(["--help", *(f"{name} somewhere" for name in missing)])[0]
    for number, folder in enumerate(folders):
        os.rename(f"removed-{number}", f"{package}/{folder}")
json.dump(results, open("results", "w"))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package, with its bytecode: no run has to compile what another one has compiled."""
    folder = tmp_path_factory.mktemp("copy") / "src"
    shutil.copytree(SRC, folder, ignore=shutil.ignore_patterns("*.pyc.*"))  # another process is writing these
    return folder / "mini_agentic_rl"


def run(*arguments: str, src: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(src), "COLUMNS": "200"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def commands(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return status, output and errors of the commands of each case."""
    folder = tmp_path_factory.mktemp("commands")
    cases = {case: (folders, missing_commands(folders)) for case, folders in CASES.items()}
    arguments = (str(copy), json.dumps(cases), json.dumps(WINGS))
    done = run("-c", COMMANDS_WITHOUT, *arguments, src=copy.parent, cwd=folder)
    assert done.returncode == 0, done.stderr
    results: dict[str, Any] = json.loads((folder / "results").read_text())
    return results


@pytest.mark.parametrize("case", CASES)
def test_commands_of_deleted_folders_say_what_is_missing_and_all_others_are_listed(case, commands):
    missing = missing_commands(CASES[case])
    status, output, errors = commands[case].pop("--help")
    assert status == 0, errors
    listed = {line.split()[1] for line in output.splitlines() if line.startswith("│ ") and len(line.split()) > 2}
    assert {"train", "serve", "eval", "store"} <= listed
    assert COMMANDS.keys() & listed == COMMANDS.keys() - set(missing)
    assert len(commands[case]) == len(missing)
    for command, (status, _, errors) in commands[case].items():
        assert (status, errors.count("\n")) == (2, 1), errors
        assert command.split()[0] in errors


def test_without_any_wing_a_model_is_trained_into_a_store(copy, commands, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(TRAINING)
    for number, wing in enumerate(WINGS):
        (copy / wing).rename(tmp_path / f"removed-{number}")
    try:
        done = run(str(program), str(Path(__file__).parent / "algorithm"), src=copy.parent, cwd=tmp_path)
    finally:
        for number, wing in enumerate(WINGS):
            (tmp_path / f"removed-{number}").rename(copy / wing)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-2:] == ["1", "1"]
