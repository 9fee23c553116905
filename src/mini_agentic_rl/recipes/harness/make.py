"""Make the sandbox that the settings name."""

from __future__ import annotations

from ...config import HarnessSettings
from .docker import DockerSandbox
from .kubernetes import KubernetesSandbox
from .namespaces import BubblewrapSandbox
from .process import ProcessSandbox
from .sandbox import Sandbox


def make_sandbox(settings: HarnessSettings) -> Sandbox:
    """Return the sandbox.

    Raises:
        UserError: its program is not installed here.
    """
    network = settings.sandbox_network
    match settings.sandbox:
        case "process":
            return ProcessSandbox(network)
        case "bubblewrap":
            return BubblewrapSandbox(network)
        case "docker":
            return DockerSandbox(network, settings.sandbox_cpus)
        case "kubernetes":
            return KubernetesSandbox(network, settings.sandbox_cpus, settings.sandbox_namespace)
