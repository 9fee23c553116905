"""Server settings of agent-lightning, under its name `utils.server_launcher`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal, TypeAlias

LaunchMode: TypeAlias = Literal["asyncio", "thread", "mp"]
"""Where agent-lightning runs a server. Every server of this package runs in a thread of its process."""


@dataclass
class PythonServerLauncherArgs:
    """Settings for `launcher_args` of a server; only host and port have an effect."""

    port: int | None = None
    host: str | None = None
    access_host: str | None = None
    launch_mode: LaunchMode = "asyncio"
    n_workers: int = 1
    healthcheck_url: str | None = None
    log_level: int = logging.INFO
    access_log: bool = False
    startup_timeout: float = 60.0
    kill_unhealthy_server: bool = True
    thread_join_timeout: float = 10.0
    process_join_timeout: float = 10.0
    timeout_keep_alive: int = 30
