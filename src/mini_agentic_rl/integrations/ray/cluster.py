"""Connect to a Ray cluster or start one, and call its actors. Only this file imports Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ...config import cache_dir, refusal
from ...errors import MissingPackageError, UserError
from ...execution.base import RunnerBundle, ThreadingEvent
from ...execution.roles import keep_running
from ...files import make_private_folder
from ...http import is_loopback
from ...logging import Throttle, setup_logging
from ...processes import RemoteFailure, begin_family, end_family
from ...runner import set_worker_label
from ...store import LightningStore, LightningStoreClient

_LONGEST_FOLDER: Final = (103 if sys.platform == "darwin" else 107) - 66
"""Longest path of the folder for Ray's sockets: the system's limit for a socket path, less the part that Ray adds."""
_NAME_CHARACTERS: Final = 9
_OBJECT_STORE_BYTES: Final = 200 * 2**20
"""Shared memory of a cluster that is started here; it only transfers the actors' bundle."""
_THREADS_OF_ACTOR: Final = 4
_CONNECT_SECONDS: Final = 10.0
_MOST_CHARACTERS: Final = 300
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


class ActorLostError(Exception):
    """An actor is lost: its process or node has died, or it could not be created."""


class RayCluster:
    """A cluster that this process is connected to; see `connected`."""

    def __init__(self, ray: Any, environment: Mapping[str, Any]) -> None:
        self._ray = ray
        self._environment = environment
        self.host = str(ray.util.get_node_ip_address())
        """Address by which other nodes reach this computer."""

    def check_reach(self, store: LightningStoreClient) -> None:
        """Check that the nodes of the cluster can reach the address of a store.

        Raises:
            UserError: it is a loopback address, and the cluster has other nodes.
        """
        if not is_loopback(urlsplit(store.server_address_root).hostname or ""):
            return
        if any(node["Alive"] and node["NodeManagerAddress"] != self.host for node in self._ray.nodes()):
            raise UserError(
                f"the other nodes of the Ray cluster cannot reach the store at {store.server_address_root}: let its "
                f"server listen where they can (here {self.host}), and name it so, or leave `store` to the strategy"
            )

    def put(self, value: Any) -> Any:
        """Store a value for many actors; return its object reference."""
        return self._ray.put(value)

    def start(self, kind: type[Any], *arguments: Any, cpus: float, gpus: float) -> RayActor:
        """Start an actor of a class on a node with free resources; Ray queues it until there is one."""
        options: dict[str, Any] = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "max_concurrency": _THREADS_OF_ACTOR,
            "max_restarts": 0,  # its rollout is requeued first, then another actor is started
            "scheduling_strategy": "SPREAD",
        }
        if self._environment:
            options["runtime_env"] = dict(self._environment)
        try:
            return RayActor(self._ray, self._ray.remote(kind).options(**options).remote(*arguments))
        except (ValueError, TypeError) as error:
            raise _bad_environment(error) from error

    def why_waiting(self, cpus: float, gpus: float) -> str:
        """Return why a runner with these resources waits."""
        needed = f"{cpus:g} CPUs" + (f" and {gpus:g} GPUs" if gpus else "")
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            return f"no node of the cluster has the {needed} that a runner asks for (`runner_cpus`, `runner_gpus`)"
        free = self._ray.available_resources()
        idle = f"{free.get('CPU', 0):g} CPUs and {free.get('GPU', 0):g} GPUs"
        return f"a runner asks for {needed} (`runner_cpus`, `runner_gpus`), and {idle} of the cluster are free"


class RayActor:
    """An actor, which may have died."""

    def __init__(self, ray: Any, handle: Any) -> None:
        self._ray = ray
        self._handle = handle

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method and return its result, once the actor runs; cancelling the wait does not end the call."""
        result = asyncio.wrap_future(getattr(self._handle, method).remote(*arguments).future())
        result.add_done_callback(_look_at)
        errors = self._ray.exceptions
        try:
            return await asyncio.shield(result)
        except errors.RuntimeEnvSetupError as error:
            raise UserError(f"the environment cannot be made: {_reason(error)}", setting="runner_env") from error
        except errors.RayTaskError as error:
            raise error.as_instanceof_cause() from error
        except (errors.RayActorError, errors.NodeDiedError, errors.WorkerCrashedError, errors.ObjectLostError) as error:
            raise ActorLostError(_reason(error)) from error

    def tell(self, method: str) -> None:
        """Call a method without waiting for its result or error."""
        getattr(self._handle, method).remote().future().add_done_callback(_look_at)

    def end(self) -> None:
        """Kill its process; from any thread."""
        with contextlib.suppress(Exception):  # the actor or the cluster is gone
            self._ray.kill(self._handle, no_restart=True)


@contextmanager
def connected(address: str, environment: Mapping[str, Any]) -> Iterator[RayCluster]:
    """Connect to a cluster or start one for the block; an existing connection is used.

    Args:
        address: as `RaySettings.address`.
        environment: Ray's runtime environment for actors.
    """
    address = os.environ.get("RAY_ADDRESS") or address if address == "auto" else address
    if address.startswith("ray://"):
        raise UserError(
            f"{address} is a cluster seen from outside, from where runners cannot reach the store: start the training "
            "on one of its nodes, with `auto`",
            setting="ray_address",
        )
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {"address": address}
        if address == "local":
            folder = stack.enter_context(_folder())
            if "ray" not in sys.modules:  # Ray reads this variable when it is imported
                os.environ.setdefault("RAY_AUTH_MODE", "token")
            if os.environ.get("RAY_AUTH_MODE") == "token" and not os.environ.get("RAY_AUTH_TOKEN_PATH"):
                os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # else Ray writes one to the home folder
            options |= {"include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES, "_temp_dir": folder}
        ray = _imported()
        _check_environment(environment)
        if ray.is_initialized():
            yield RayCluster(ray, environment)
            return
        _check_head(address)
        stack.callback(_signals_as_before()(ray.shutdown))
        if environment:
            options["runtime_env"] = dict(environment)  # for the whole job, else Ray uploads no local folders
        with _signals_as_before():
            try:
                ray.init(**options, configure_logging=False, logging_level=logging.ERROR)
            except ray.exceptions.RuntimeEnvSetupError as error:
                raise _bad_environment(error) from error
            except Exception as error:  # Ray also raises bare exceptions, as when it starts too slowly
                raise UserError(_no_cluster(address, error), setting="ray_address") from error
        yield RayCluster(ray, {})


def _check_head(address: str) -> None:
    """Check that a server listens at an address; Ray itself would retry for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(_no_cluster(address, error), setting="ray_address") from error


def _imported() -> Any:
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise MissingPackageError("strategy='ray'", "ray", extra="ray", setting="strategy") from error
    logger = logging.getLogger("ray")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)
    return ray


def _check_environment(environment: Mapping[str, Any]) -> None:
    from ray.runtime_env import RuntimeEnv

    known = sorted(RuntimeEnv.known_fields)
    for name in environment:
        if name not in known:
            complaint = refusal(name, known) or f"there is no {name} among {', '.join(known)}"
            raise _bad_environment(ValueError(complaint))
    folder = environment.get("working_dir")
    try:
        RuntimeEnv(**{name: value for name, value in environment.items() if name not in ("working_dir", "py_modules")})
        if folder is not None and "://" not in folder and not Path(folder).is_dir():
            raise ValueError(f"working_dir: there is no folder {folder}")
    except (ValueError, TypeError) as error:
        raise _bad_environment(error) from error


def _bad_environment(error: Exception) -> UserError:
    return UserError(f"Ray does not take the environment: {_reason(error)}", setting="runner_env")


@contextmanager
def _signals_as_before() -> Iterator[None]:
    """Restore the SIGTERM handler of the main thread, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _folder() -> Iterator[str]:
    """Create the folder of a cluster that is started here, and remove it afterwards."""
    parent = cache_dir() / "ray"
    if len(str(parent)) + _NAME_CHARACTERS > _LONGEST_FOLDER:
        folder = tempfile.mkdtemp(prefix="agentic-rl-", dir="/tmp")
    else:
        make_private_folder(parent)
        folder = tempfile.mkdtemp(prefix="", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _no_cluster(address: str, error: Exception) -> str:
    if address == "auto":
        return (
            "no Ray cluster runs here: start one with `ray start --head`, name one as HOST:PORT, or have one started "
            f"for this run by `local` ({_reason(error)})"
        )
    if address == "local":
        return f"Ray could not be started: {_reason(error)}"
    return f"there is no Ray cluster at {address}: {_reason(error)}"


def _reason(error: BaseException) -> str:
    """Return the relevant part of Ray's message: why an actor is dead, or the last line of a traceback."""
    lines = [line.strip() for line in _COLOUR.sub("", str(error)).splitlines() if line.strip()]
    text = " ".join(lines)
    if "creation task" in text:
        return lines[-1]
    _, dead, rest = text.partition("The actor is dead because ")
    shown = rest if dead else text
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]}…"


def _look_at(result: asyncio.Future[Any] | Future[Any]) -> None:
    """Retrieve the error of an abandoned call, so that asyncio does not log it."""
    if not result.cancelled():
        result.exception()


# One runner in a process on some node, whose methods Ray calls.
#
# `stop` requeues its rollout. If it does not stop in time, its process is killed with its child processes.


@dataclass(frozen=True)
class RunnerSetup:
    """What a runner on another node needs."""

    bundle: bytes
    """Pickle of the bundle to run."""
    store: bytes
    """Pickle of the store, as it is seen from another node."""
    paths: Sequence[str]
    """Folders in which the starting process finds modules."""
    log_level: int | None
    """Level of what the runner logs; None leaves it to the process."""
    run_label: str | None = None
    """Distinguishes the workers of this run from others on the same store."""


@dataclass(frozen=True)
class Place:
    """Host and process of a runner."""

    host: str
    pid: int


class RunnerActor:
    """A runner; one thread runs it while others end it."""

    def __init__(self, setup: RunnerSetup, index: int, worker_label: str | None) -> None:
        self._setup = setup
        self._index = index
        self._worker_label = worker_label
        self._event = ThreadingEvent()
        self._mark = begin_family()
        self._bundle: RunnerBundle | None = None
        self._store: LightningStore | None = None

    def load(self) -> Place | RemoteFailure:
        """Load the bundle and the store; return the host and process, or the failure."""
        sys.path.extend(path for path in self._setup.paths if path not in sys.path)
        if self._setup.log_level is not None:
            setup_logging(self._setup.log_level)
        try:
            self._store = pickle.loads(self._setup.store)
            self._bundle = pickle.loads(self._setup.bundle)
        except BaseException as error:  # unpickling imports user code, which may raise anything
            return RemoteFailure.of(error)
        return Place(socket.gethostname(), os.getpid())

    def run(self) -> None:
        """Run until the runner ends; it is restarted after a crash."""
        bundle, store = self._bundle, self._store
        if bundle is None or store is None:
            raise RuntimeError("the runner was not loaded")
        set_worker_label(self._worker_label)

        async def work() -> None:
            try:
                await keep_running(bundle, store, self._index, self._event, Throttle())
            finally:
                await store.close()

        try:
            asyncio.run(work())
        finally:
            self.end_others()

    def stop(self) -> None:
        """End now; the current rollout is requeued."""
        self._event.set()

    def end_others(self) -> None:
        """Kill everything that this process has started."""
        end_family(os.getpid(), self._mark, grace=0)
