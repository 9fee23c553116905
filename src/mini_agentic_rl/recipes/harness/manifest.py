"""The Job of a command on Kubernetes, and the policy that closes its network."""

from __future__ import annotations

import ipaddress
import shlex
import socket
from typing import Any, Final

from ...config import MIB
from .sandbox import Confined

FOLDERS: Final = "/mini-agentic-rl"
"""Folder in the pod below which the rollout's folders lie under their own paths."""
READY: Final = ".ready"
HELD: Final = ".fetched"
_HOLD_SECONDS: Final = 600
_LABEL: Final = "mini-agentic-rl/run"


def job_manifest(confined: Confined, name: str, *, cpus: float, closed: bool) -> dict[str, Any]:
    """Return the Job that runs a command, and with a closed network its policy, as one list."""
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

    def container(called: str, script: str, shown: list[dict[str, str]]) -> dict[str, Any]:
        return {
            "name": called,
            "image": confined.image,
            "command": ["sh", "-c", script],
            "volumeMounts": shown,
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
    """Return the addresses of a host, each as a network of one."""
    try:
        found = {ipaddress.ip_address(host)}
    except ValueError:
        answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        found = {ipaddress.ip_address(str(answer[4][0]).partition("%")[0]) for answer in answers}
    return [f"{one}/{one.max_prefixlen}" for one in sorted(found, key=str)]
