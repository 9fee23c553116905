"""The files of deploy/, each by the schema or the tool of whoever reads it; the commands in them by our own parser."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from .compose import DEPLOY, DRAIN, ROOT, RUNNERS_END, document, grace, parses


class TestCompose:
    def test_it_fits_the_compose_specification(self) -> None:
        check_jsonschema = pytest.importorskip(
            "check_jsonschema",
            reason="check-jsonschema is not installed: the compose file is left unchecked by its schema",
        )
        jsonschema = pytest.importorskip("jsonschema", reason="the compose file is left unchecked by its schema")
        folder = resources.files(check_jsonschema) / "builtin_schemas" / "vendor"
        schema = json.loads((folder / "compose-spec.json").read_text())
        checker = jsonschema.validators.validator_for(schema)(schema)
        assert [error.message for error in checker.iter_errors(document())] == []
        assert list(checker.iter_errors({**document(), "servces": {}})), "a schema that takes anything checks nothing"

    def test_its_commands_are_ours_its_volumes_are_there_and_no_secret_is_in_it(self) -> None:
        for service in document()["services"].values():
            if "build" in service:
                parses(service["command"])
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                assert source in document()["volumes"] or (DEPLOY / source).is_file(), volume
            for name, value in service["environment"].items():
                if "PASSWORD" in name or "KEY" in name:
                    assert re.fullmatch(r"\$\{\w+:\?.*\}", value), name

    def test_each_service_has_time_to_stop(self) -> None:
        given = document()["services"]
        assert grace(given["store"]["stop_grace_period"]) > DRAIN
        assert grace(given["runner"]["stop_grace_period"]) > RUNNERS_END


class TestImage:
    def test_what_it_copies_is_there_and_not_ignored(self) -> None:
        kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
        for line in (DEPLOY / "Dockerfile").read_text().splitlines():
            if line.startswith("COPY "):
                for name in line.split()[1:-1]:
                    assert (ROOT / name).exists()
                    assert name in kept


STAND_IN = """#!{python}
import json, os, signal, sys, time
names = ("AGL_CURRENT_ROLE", "AGL_MANAGED_STORE", "AGL_SERVER_HOST", "AGL_SERVER_PORT")
role = os.environ.get("AGL_CURRENT_ROLE", "store")
with open(os.environ["TOLD"], "a") as told:
    variables = {{name: os.environ.get(name) for name in names}}
    told.write(json.dumps([role, sys.argv[1:], variables, len(os.environ["AGL_API_KEY"])]) + "\\n")
if role == "algorithm":
    while sum(1 for _ in open(os.environ["TOLD"])) < int(os.environ["COMMANDS"]):
        time.sleep(0.02)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.pause()
"""
"""Tells how it was called; as the learner it ends once all have been called, else when it is told to."""

SRUN = """#!/bin/bash
export SLURM_NODEID=0
printf '%s\\n' "$*" >> "$TOLD.srun"
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""


TORCHRUN = """#!/bin/bash
printf '%s\\n' "$@" > "$TOLD.torchrun"
while [[ $1 != -m ]]; do shift; done
shift 2
exec mini-agentic-rl "$@"
"""


def tool(folder: Path, name: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)


def run_script(tmp_path: Path, script: list[str], home: Path, commands: int, **variables: str) -> dict[str, Any]:
    """Run a script with stand-ins for our command; return how each role was called."""
    told = tmp_path / "told"
    done = subprocess.run(
        script,
        cwd=ROOT,
        env={
            "HOME": str(home),
            "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
            "TOLD": str(told),
            "COMMANDS": str(commands),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = {}
    for role, words, asked, key in map(json.loads, told.read_text().splitlines()):
        parses(["mini-agentic-rl", *words])
        assert key >= 32
        found[role] = {"words": words, **asked}
    return found


def _by_role(line: str) -> int:
    return 0 if " store " in line else 1 if "--exclude" in line else 2


def follow(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


class TestSlurm:
    SCRIPT = DEPLOY / "slurm.sh"

    def run(self, tmp_path: Path, *options: str, **variables: str) -> dict[str, Any]:
        """Run the script as on three nodes; return how each role was called."""
        bins = tmp_path / "bin"
        tool(bins, "mini-agentic-rl", STAND_IN.format(python=shutil.which("python3")))
        tool(bins, "srun", SRUN)
        tool(bins, "torchrun", TORCHRUN)
        tool(bins, "scontrol", "#!/bin/bash\nprintf '%s\\n' node1 node2 node3\n")
        script = ["bash", str(self.SCRIPT), "deploy/kubernetes/train.yaml", str(tmp_path / "run"), *options]
        slurm = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "node[1-3]"}
        return run_script(tmp_path, script, tmp_path, 3, **slurm, **variables)

    @pytest.mark.skipif(os.name != "posix", reason="NOT CHECKED here: the Slurm script, which needs a shell")
    def test_it_starts_store_learner_and_runners_where_they_find_each_other(self, tmp_path: Path) -> None:
        found = self.run(tmp_path, "--total-steps", "3")
        port = follow(found["store"]["words"], "--port")
        for role in ("algorithm", "runner"):
            called = found[role]
            assert (called["AGL_SERVER_HOST"], called["AGL_SERVER_PORT"]) == ("node1", port)
            assert called["AGL_MANAGED_STORE"] == "0"
            assert Path(follow(called["words"], "--config")) == DEPLOY / "kubernetes" / "train.yaml"
        learner = found["algorithm"]["words"]
        assert follow(learner, "--gateway-url") == f"http://node1:{follow(learner, '--gateway-port')}"
        assert learner[-2:] == ["--total-steps", "3"]

    @pytest.mark.skipif(os.name != "posix", reason="NOT CHECKED here: the Slurm script, which needs a shell")
    def test_several_ranks_on_several_nodes_are_started_by_torchrun_and_meet_on_the_first(self, tmp_path: Path) -> None:
        from torch.distributed.run import get_args_parser

        found = self.run(tmp_path, "--resume", LEARNERS="2", RANKS="4")
        assert found["algorithm"]["words"][-1] == "--resume"
        asked = get_args_parser().parse_args((tmp_path / "told.torchrun").read_text().splitlines())
        assert (asked.nnodes, asked.nproc_per_node, asked.node_rank) == ("2", "4", 0)
        assert (asked.master_addr, asked.training_script, asked.module) == ("node1", "mini_agentic_rl", True)
        store, runners, learner = sorted((tmp_path / "told.srun").read_text().splitlines(), key=_by_role)
        assert "--nodelist=node1 " in store
        assert "--nodes=1 --ntasks=1 --exclude=node1,node2 " in runners
        assert "--nodes=2 --ntasks=2 --overlap --nodelist=node1,node2 " in learner
        assert str(asked.master_port) not in (
            follow(found["store"]["words"], "--port"),
            learner.split("--gateway-port ")[1].split()[0],
        )

    def test_one_node_is_too_few_and_is_told_so(self, tmp_path: Path) -> None:
        tool(tmp_path / "bin", "scontrol", "#!/bin/bash\necho node1\n")
        done = subprocess.run(
            ["bash", str(self.SCRIPT), "deploy/kubernetes/train.yaml", str(tmp_path / "run")],
            cwd=ROOT,
            env={
                "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
                "SLURM_JOB_ID": "1",
                "SLURM_JOB_NODELIST": "node1",
            },
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2
        assert done.stderr.startswith("2 nodes at least: 1 to learn")
