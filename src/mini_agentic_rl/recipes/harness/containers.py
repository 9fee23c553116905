"""The sandboxes of containers: Docker on this computer, and Jobs of a Kubernetes cluster.

Docker is run by its command line, or that of a compatible program named `docker`. The container has a read-only root,
no capabilities, the limits, and the rollout's folders. With a closed network it has only its loopback, where
`inside.py` (the image needs `python3`) forwards connections to the gateway. With an open network the gateway is
`host.docker.internal`.

On Kubernetes each command is a Job, created and removed by `kubectl`:

    init container `fill`    waits until the rollout's folders have been sent
    container `agent`        runs the command in them, within its limits
    container `hold`         keeps the pod until the folders have been fetched

The folders are sent and fetched as tar over `kubectl exec`, so the cluster needs no shared disk; the image needs `sh`
and `tar`. With a closed network a NetworkPolicy allows only the gateway's address, if the cluster's network enforces
policies; the gateway needs an address that pods reach (`gateway_url`).
"""

from __future__ import annotations

import asyncio
import io
import ipaddress
import json
import os
import shlex
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ...config import MIB
from ...errors import UserError
from ...http import is_loopback
from ...processes import start_child
from .process import run_supervised
from .sandbox import (
    PROGRAMS,
    Confined,
    Ended,
    HarnessError,
    exit_code_of,
    inner_port,
    loopback_url,
    new_name,
    relayed,
    remove_tree,
)

HOST: Final = "host.docker.internal"
_INSIDE: Final = "/mini-agentic-rl/inside.py"
_SOCKET_FOLDER: Final = "/mini-agentic-rl/way"
_FAILED_TO_RUN: Final = 125
_DOCKER_VARIABLES: Final = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY")


class DockerSandbox:
    """Runs commands in containers."""

    def __init__(self, network: str, cpus: float) -> None:
        """`network` is `closed` or `open`; `cpus` is the number of CPUs of a container.

        Raises:
            UserError: `docker` is not installed.
        """
        program = shutil.which("docker")
        if program is None:
            raise UserError("there is no `docker` command here; or take `sandbox=process`", setting="sandbox")
        self._program = program
        self._network = network
        self._cpus = cpus

    async def run(self, confined: Confined) -> Ended:
        name = new_name()
        async with relayed(self._network, confined.gateway) as gateway_socket:
            ended = await run_supervised(
                self.arguments(confined, name, gateway_socket),
                {key: os.environ[key] for key in _DOCKER_VARIABLES if key in os.environ},
                confined.limits,
                folders=[confined.workspace, *confined.writable],
                cwd=confined.workspace,
                after=[self._program, "rm", "--force", name],
            )
        if ended.exit_code == _FAILED_TO_RUN:
            raise HarnessError(f"docker cannot run the container: {ended.stderr.strip()[-300:]}")
        code = exit_code_of(ended.exit_code)
        # the usage is that of the client, not of the container
        return replace(ended, exit_code=code, memory=0, cpu_seconds=0.0, facts={"container": name})

    def base_url(self, url: str) -> str:
        if self._network == "closed":
            return loopback_url(url)
        parts = urlsplit(url)
        if not is_loopback(parts.hostname or ""):
            return url
        port = f":{parts.port}" if parts.port else ""
        return parts._replace(netloc=f"{HOST}{port}").geturl()

    def arguments(self, confined: Confined, name: str, gateway_socket: Path | None) -> list[str]:
        """Return the command line that runs a command in a container of this name.

        Args:
            gateway_socket: socket of the gateway; None without a gateway or with an open network.

        Raises:
            UserError: no image is given.
        """
        if not confined.image:
            raise UserError("docker needs the image of a container", setting="sandbox_image")
        limits = confined.limits
        memory = f"{limits.memory // MIB}m"
        words: list[str] = [
            *(self._program, "run", "--rm", "--init", "--name", name, "--pull", "missing"),
            *("--label", "mini-agentic-rl=harness", "--workdir", str(confined.workspace)),
            *(("--user", f"{os.getuid()}:{os.getgid()}") if hasattr(os, "getuid") else ()),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--read-only", "--tmpfs", "/tmp:rw,nosuid,size=64m"),
            *("--memory", memory, "--memory-swap", memory, "--cpus", f"{self._cpus:g}"),
            *("--pids-limit", str(limits.processes)),
            *("--ulimit", f"fsize={limits.file}", "--ulimit", f"cpu={int(limits.cpu_seconds) + 1}"),
            *("--ulimit", "core=0"),
        ]
        if self._network == "closed":
            words += ["--network", "none"]
        else:
            words += ["--add-host", f"{HOST}:host-gateway"]
        for path in (confined.workspace, *confined.writable):
            words += ["--mount", f"type=bind,source={path},target={path}"]
        for path in confined.given:
            words += ["--mount", f"type=bind,source={path},target={path},readonly"]
        command: Sequence[str] = confined.words
        if gateway_socket is not None and confined.gateway is not None:
            words += ["--mount", f"type=bind,source={PROGRAMS / 'inside.py'},target={_INSIDE},readonly"]
            words += ["--mount", f"type=bind,source={gateway_socket.parent},target={_SOCKET_FOLDER}"]
            way = ["--relay", str(inner_port(confined.gateway[1])), f"{_SOCKET_FOLDER}/{gateway_socket.name}"]
            command = ["python3", "-I", "-S", _INSIDE, *way, "--", *command]
        for key, value in confined.env.items():
            if key != "PATH":  # the image's own
                words += ["--env", f"{key}={value}"]
        return [*words, confined.image, *command]


FOLDERS: Final = "/mini-agentic-rl"
"""Folder in the pod that contains the rollout's folders under their own paths."""
READY: Final = ".ready"
HELD: Final = ".fetched"
_HOLD_SECONDS: Final = 600
_LABEL: Final = "mini-agentic-rl/run"


def job_manifest(confined: Confined, name: str, *, cpus: float, closed: bool) -> dict[str, Any]:
    """Return a list of the Job of a command and, with a closed network, its NetworkPolicy."""
    items: list[dict[str, Any]] = [_job(confined, name, cpus)]
    if closed:
        items.insert(0, _policy(confined, name))
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _job(confined: Confined, name: str, cpus: float) -> dict[str, Any]:
    limits = confined.limits
    mount = {"name": "folders", "mountPath": FOLDERS}
    amounts = {"cpu": f"{round(cpus * 1000)}m", "memory": f"{limits.memory // MIB}Mi"}
    secure = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounts = [
        {"name": "folders", "mountPath": str(path), "subPath": str(path).lstrip("/")}
        for path in (confined.workspace, *confined.writable, *confined.given)
    ]

    def container(name: str, script: str, mounts: list[dict[str, str]]) -> dict[str, Any]:
        return {
            "name": name,
            "image": confined.image,
            "command": ["sh", "-c", script],
            "volumeMounts": mounts,
            "securityContext": secure,
            "resources": {"limits": amounts, "requests": {"cpu": "10m", "memory": "16Mi"}},
        }

    seconds = f"timeout {limits.seconds:g} " if limits.seconds else ""
    bounds = f"ulimit -f {limits.file // 512}; ulimit -t {int(limits.cpu_seconds) + 1}; ulimit -c 0"
    run = f"{bounds}; cd {shlex.quote(str(confined.workspace))} && exec {seconds}{shlex.join(confined.words)}"
    agent = container("agent", run, [{"name": "tmp", "mountPath": "/tmp"}, *mounts])
    agent["resources"]["requests"] = amounts
    agent["resources"]["limits"] = {**amounts, "ephemeral-storage": f"{limits.disk // MIB}Mi"}
    agent["env"] = [{"name": key, "value": value} for key, value in confined.env.items() if key != "PATH"]
    wait = f"until [ -e {FOLDERS}/{{0}} ]; do sleep 0.2; done"
    labels = {_LABEL: name, "app.kubernetes.io/part-of": "mini-agentic-rl"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": int(limits.seconds) + 2 * _HOLD_SECONDS,
            "ttlSecondsAfterFinished": _HOLD_SECONDS,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": "Never",
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": 0,
                    "securityContext": {
                        "runAsNonRoot": True,
                        "runAsUser": 1000,
                        "runAsGroup": 1000,
                        "fsGroup": 1000,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    "initContainers": [container("fill", wait.format(READY), [mount])],
                    "containers": [agent, container("hold", wait.format(HELD), [mount])],
                    "volumes": [
                        {"name": "folders", "emptyDir": {"sizeLimit": f"{limits.disk // MIB}Mi"}},
                        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
                    ],
                },
            },
        },
    }


def _policy(confined: Confined, name: str) -> dict[str, Any]:
    egress: list[dict[str, Any]] = []
    if confined.gateway is not None:
        host, port = confined.gateway
        egress = [
            {
                "to": [{"ipBlock": {"cidr": cidr}} for cidr in _addresses(host)],
                "ports": [{"protocol": "TCP", "port": port}],
            }
        ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": {_LABEL: name}},
        "spec": {
            "podSelector": {"matchLabels": {_LABEL: name}},
            "policyTypes": ["Ingress", "Egress"],
            "egress": egress,
        },
    }


def _addresses(host: str) -> list[str]:
    """Return the addresses of a host as networks of one address."""
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    addresses = {ipaddress.ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers}
    return [f"{address}/{address.max_prefixlen}" for address in sorted(addresses, key=str)]


_START_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 1.0
_CALL_SECONDS: Final = 120.0
_KUBECTL_VARIABLES: Final = ("PATH", "HOME", "KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
_TIMED_OUT: Final = 124
"""Exit code of `timeout`, under which the command runs."""
_OUT_OF_MEMORY: Final = "OOMKilled"


class KubernetesSandbox:
    """Runs commands as Jobs."""

    def __init__(self, network: str, cpus: float, namespace: str) -> None:
        """`network` is `closed` or `open`; `cpus` is the number of CPUs of a container.

        Raises:
            UserError: `kubectl` is not installed.
        """
        program = shutil.which("kubectl")
        if program is None:
            raise UserError("there is no `kubectl` command here; or take `sandbox=process`", setting="sandbox")
        self._program = [program, "--namespace", namespace]
        self._network = network
        self._cpus = cpus

    async def run(self, confined: Confined) -> Ended:
        if not confined.image:
            raise UserError("kubernetes needs the image of a container", setting="sandbox_image")
        name = new_name()
        manifest = job_manifest(confined, name, cpus=self._cpus, closed=self._network == "closed")
        try:
            await self._call("create", "--filename", "-", given=json.dumps(manifest).encode())
            return await self._run(confined, name)
        finally:
            gone = ("delete", "job,networkpolicy", "--selector", f"{_LABEL}={name}", "--wait=false")
            await asyncio.shield(self._call(*gone, "--ignore-not-found", checked=False))

    def base_url(self, url: str) -> str:
        if is_loopback(urlsplit(url).hostname or ""):
            raise HarnessError(
                f"{url}: pods do not reach this computer's loopback: set `gateway_host` and `gateway_url`"
            )
        return url

    async def _run(self, confined: Confined, name: str) -> Ended:
        pod, _ = await self._wait(name, "fill", "running", _START_SECONDS)
        folders = [confined.workspace, *confined.writable]
        await self._call(
            *("exec", "--stdin", pod, "--container", "fill", "--"),
            *("sh", "-c", f"tar -x -C {FOLDERS} && touch {FOLDERS}/{READY}"),
            given=await asyncio.to_thread(_packed, [*folders, *confined.given]),
        )
        limits = confined.limits
        _, ended = await self._wait(name, "agent", "terminated", limits.seconds + _START_SECONDS)
        tail = ("--tail", "2000", "--limit-bytes", str(limits.output))
        output = await self._call("logs", pod, "--container", "agent", *tail)  # Kubernetes joins both streams
        names = [str(folder).lstrip("/") for folder in folders]
        fetched = await self._call("exec", pod, "--container", "hold", "--", "tar", "-c", "-C", FOLDERS, *names)
        await asyncio.to_thread(_unpacked, fetched, folders)
        await self._call("exec", pod, "--container", "hold", "--", "touch", f"{FOLDERS}/{HELD}", checked=False)
        limit = "sandbox_memory_mib" if ended.get("reason") == _OUT_OF_MEMORY else None
        if ended.get("reason") == "DeadlineExceeded" or ended.get("exitCode") == _TIMED_OUT:
            limit = "sandbox_seconds"
        code = None if limit is not None else exit_code_of(int(ended.get("exitCode", 1)))
        return Ended(code, limit, stdout=output.decode("utf-8", "replace"), facts={"job": name, "pod": pod})

    async def _wait(self, name: str, container: str, state: str, seconds: float) -> tuple[str, Mapping[str, Any]]:
        """Wait until a container of the Job's pod is in a state; return the pod's name and the details of the state.

        Raises:
            HarnessError: it is not within `seconds`, or the pod has failed.
        """
        end = asyncio.get_running_loop().time() + seconds
        while True:
            listed = await self._call("get", "pods", "--selector", f"{_LABEL}={name}", "--output", "json")
            pod: dict[str, Any] = next(iter(json.loads(listed).get("items", [])), {})
            status = pod.get("status", {})
            containers = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
            states = {each["name"]: each.get("state", {}) for each in containers}
            if state in states.get(container, {}):
                return str(pod["metadata"]["name"]), states[container][state]
            waiting: dict[str, Any] = next((each["waiting"] for each in states.values() if "waiting" in each), {})
            reason = waiting.get("reason", "")
            if reason in ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"):
                raise HarnessError(f"the pod of {name} does not start: {reason}: {waiting.get('message', '')[:200]}")
            if status.get("phase") == "Failed":
                raise HarnessError(f"the pod of {name} failed: {status.get('reason', '')} {status.get('message', '')}")
            if asyncio.get_running_loop().time() > end:
                raise HarnessError(f"{container} of {name} was not {state} within {seconds:g} s")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _call(self, *words: str, given: bytes | None = None, checked: bool = True) -> bytes:
        """Run kubectl and return its output.

        Raises:
            HarnessError: it fails, or takes too long.
        """
        process = await asyncio.to_thread(
            start_child,
            [*self._program, *words],
            stdin=subprocess.DEVNULL if given is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={key: os.environ[key] for key in _KUBECTL_VARIABLES if key in os.environ},
        )
        try:
            output, errors = await asyncio.to_thread(process.communicate, given, _CALL_SECONDS)
        except subprocess.TimeoutExpired:
            raise HarnessError(f"kubectl {words[0]} took longer than {_CALL_SECONDS:g} s") from None
        finally:
            if process.poll() is None:
                process.kill()
        if checked and process.returncode != 0:
            raise HarnessError(f"kubectl {words[0]}: {errors.decode('utf-8', 'replace').strip()[:300]}")
        return bytes(output)


def _packed(folders: Sequence[Path]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for folder in folders:
            archive.add(folder, arcname=str(folder).lstrip("/"))
    return data.getvalue()


def _unpacked(data: bytes, folders: Sequence[Path]) -> None:
    """Replace the folders by those of an archive; nothing is written anywhere else."""
    for folder in folders:
        remove_tree(folder)
        folder.mkdir(parents=True, exist_ok=True)
    allowed = [str(folder).lstrip("/") for folder in folders]
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            inside = any(member.name == name or member.name.startswith(f"{name}/") for name in allowed)
            if inside and ".." not in Path(member.name).parts and (member.isreg() or member.isdir()):
                archive.extract(member, "/", set_attrs=member.isreg())
