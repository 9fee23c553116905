"""Containers for agents that are commands: what Docker is told, and the Job that Kubernetes is given.

Neither runs here. Their command lines are stood in for by small programs that do what they would do, on this computer.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.test_kubernetes import unknown_fields
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.recipes.harness import HarnessError, HarnessSettings, containers
from mini_agentic_rl.recipes.harness.containers import DockerSandbox, KubernetesSandbox, job_manifest
from mini_agentic_rl.recipes.harness.sandbox import Confined, Readable, SandboxLimits

pytestmark = pytest.mark.skipif(os.name != "posix", reason="commands as agents need Linux or macOS: left unchecked")

DOCKER = """#!/bin/sh
echo "$@" >> "$HOME/docker.log"
[ "$1" = run ] || exit 0
while [ "$1" != an-image ]; do
  case "$1" in --workdir) cd "$2";; --env) export "$2";; esac
  shift
done
shift
exec "$@"
"""

KUBECTL = """#!/usr/bin/env python3
import json, os, pathlib, subprocess, sys
home = pathlib.Path(os.environ["HOME"])
words = sys.argv[3:]
with open(home / "kubectl.log", "a") as log:
    log.write(" ".join(words) + chr(10))
job = home / "job.json"
def container(name, state):
    return {"name": name, "state": state}
if words[0] == "create":
    job.write_text(sys.stdin.read())
elif words[0] == "get":
    items = json.loads(job.read_text())["items"]
    agent = items[-1]["spec"]["template"]["spec"]["containers"][0]
    status = {"initContainerStatuses": [container("fill", {"running": {}})]}
    if (home / "filled").exists():
        env = dict(os.environ, **{one["name"]: one["value"] for one in agent["env"]})
        with open(home / "log", "w") as out:
            code = subprocess.call(agent["command"], env=env, stdout=out, stderr=out)
        status["containerStatuses"] = [container("agent", {"terminated": {"exitCode": code}})]
    print(json.dumps({"items": [{"metadata": {"name": "the-pod"}, "status": status}]}))
elif words[0] == "logs":
    print((home / "log").read_text(), end="")
elif words[0] == "exec" and "fill" in words:
    (home / "filled").write_bytes(sys.stdin.buffer.read())
elif words[0] == "exec" and "tar" in words:
    subprocess.check_call(["tar", "-c", "-C", "/", *words[words.index("-C") + 2:]])
"""


def confined(folder: Path, *words: str) -> Confined:
    for name in ("workspace", "home"):
        (folder / name).mkdir()
    (folder / "task.json").write_text("{}")
    return Confined(
        words=words,
        env={"OPENAI_MODEL": "m", "PATH": "/nowhere"},
        workspace=folder / "workspace",
        writable=[folder / "home"],
        given=[folder / "task.json"],
        readable=Readable([], []),
        limits=SandboxLimits.of(HarnessSettings(), 60.0),
        gateway=("127.0.0.1", 8000),
        image="an-image",
    )


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Stand-ins for both programs, first on the PATH; they write down what they are told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"docker": DOCKER, "kubectl": KUBECTL}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


async def test_docker_is_told_every_limit_and_the_container_is_removed(programs):
    script = 'echo "$OPENAI_MODEL"; echo made > made; exit 5'
    ended = await DockerSandbox("open", 2.0).run(confined(programs, "sh", "-c", script))
    assert (ended.exit_code, ended.stdout) == (5, "m\n"), ended.stderr
    assert (programs / "workspace" / "made").read_text() == "made\n"
    run, removed = (programs / "docker.log").read_text().splitlines()
    for part in (
        "--rm --init",
        "--cap-drop ALL --security-opt no-new-privileges",
        "--read-only",
        "--memory 2048m --memory-swap 2048m --cpus 2",
        "--pids-limit 256",
        "--ulimit fsize=268435456",
        f"--mount type=bind,source={programs}/workspace,target={programs}/workspace --mount",
        f"target={programs}/task.json,readonly",
        "--add-host host.docker.internal:host-gateway",
    ):
        assert part in run, part
    assert "PATH=" not in run
    name = ended.facts["container"]
    assert f"--name {name}" in run
    assert removed == f"rm --force {name}"


def test_docker_with_a_closed_network_has_one_way_out(programs):
    sandbox = DockerSandbox("closed", 1.0)
    asked = confined(programs, "agent")
    words = " ".join(sandbox.arguments(asked, "one", programs / "way" / "gateway"))
    assert "--network none" in words
    assert words.endswith(
        "an-image python3 -I -S /mini-agentic-rl/inside.py --relay 8000 /mini-agentic-rl/way/gateway -- agent"
    )
    assert sandbox.base_url("http://10.0.0.1:8000/v1") == "http://127.0.0.1:8000/v1"
    assert DockerSandbox("open", 1.0).base_url("http://127.0.0.1:8000/v1") == "http://host.docker.internal:8000/v1"
    with pytest.raises(HarnessError, match="over plain HTTP alone"):
        sandbox.base_url("https://10.0.0.1/v1")
    with pytest.raises(UserError, match="sandbox_image: docker needs the image"):
        sandbox.arguments(replace(asked, image=""), "one", None)


async def test_a_job_is_made_filled_read_fetched_and_removed(programs, monkeypatch):
    monkeypatch.setattr(containers, "_LOOK_SECONDS", 0.0)
    script = 'echo "$OPENAI_MODEL"; echo made > made; exit 5'
    sandbox = KubernetesSandbox("open", 1.0, "agents")
    ended = await sandbox.run(confined(programs, "sh", "-c", script))
    assert (ended.exit_code, ended.stdout) == (5, "m\n")
    assert (programs / "workspace" / "made").read_text() == "made\n"
    told = [line.split()[0] for line in (programs / "kubectl.log").read_text().splitlines()]
    assert told == ["create", "get", "exec", "get", "logs", "exec", "exec", "delete"]
    with pytest.raises(HarnessError, match="pods do not reach this computer's loopback: set `gateway_host`"):
        sandbox.base_url("http://127.0.0.1:8000/v1")


def test_a_job_closes_what_it_can(programs):
    asked = replace(confined(programs, "agent", "a b"), gateway=("10.1.2.3", 8000))
    policy, job = job_manifest(asked, "one", cpus=0.5, closed=True)["items"]
    assert policy["spec"]["egress"] == [
        {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}], "ports": [{"protocol": "TCP", "port": 8000}]}
    ]
    labels = job["spec"]["template"]["metadata"]["labels"].items()
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels
    pod = job["spec"]["template"]["spec"]
    agent = pod["containers"][0]
    assert agent["command"][-1].endswith("exec timeout 60 agent 'a b'")
    assert agent["resources"]["limits"] == {"cpu": "500m", "memory": "2048Mi", "ephemeral-storage": "1024Mi"}
    assert (pod["automountServiceAccountToken"], pod["restartPolicy"]) == (False, "Never")
    assert all(one["securityContext"]["capabilities"] == {"drop": ["ALL"]} for one in pod["containers"])
    assert json.loads(json.dumps(job)) == job
    closed = job_manifest(replace(asked, gateway=None), "one", cpus=1, closed=True)["items"][0]
    assert closed["spec"]["egress"] == []


def test_the_job_and_its_policy_fit_the_api(programs):
    pytest.importorskip("lightkube.models", reason="lightkube-models is not installed: the Job is left unchecked")
    items = job_manifest(confined(programs, "agent"), "one", cpus=1, closed=True)["items"]
    assert [one["kind"] for one in items] == ["NetworkPolicy", "Job"]
    for one in items:
        assert unknown_fields(one) == []
        assert unknown_fields({**one, "spek": 1}) == [f"{one['kind']}.spek"]
