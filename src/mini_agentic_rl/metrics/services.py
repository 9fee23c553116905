"""Loggers of other packages: their base class, TensorBoard, W&B and Prometheus, and `make_logger`.

Each package is imported when its logger is made; an error names one that is missing or cannot be imported. SwanLab,
MLflow and Trackio are in `integrations/loggers`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import netrc
import os
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from ..errors import MissingPackageError, UserError
from ..plugins import choices_or_plugin, load_plugin, or_plugin
from ..redaction import without_secrets
from .base import GuardedLogger, MetricsLogger, MultiLogger
from .console import ConsoleLogger
from .jsonl import JsonlLogger

logger = logging.getLogger(__name__)

PROJECT: Final = "mini-agentic-rl"
"""Name of the project, for services that have projects."""
_STEP = "step"
_LEAVE_OUT = "leave it out of `loggers`"


class ServiceLogger(MetricsLogger, ABC):
    """Base of a logger of another package; `_end` is called once, however often it is closed.

    Args:
        run_dir: existing folder of the run.
        hyperparameters: the configuration of the run, as JSON values.

    Raises:
        MissingPackageError: the package is not installed; the message names the extra that brings it.
        ImportError: the package cannot be imported; the message says what to do.
    """

    package: ClassVar[str]
    """Required package."""
    module: ClassVar[str]
    """Module to import."""
    offline_setting: ClassVar[str | None] = None
    """Environment variable and value that keep a run on this computer."""
    _open = True
    _last_step = 0

    def __init__(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None:
        with _stdout_to_stderr():
            self._begin(run_dir, hyperparameters)

    @classmethod
    def load(cls) -> Any:
        """Import the module of the package.

        Raises:
            ImportError: it is not installed, or conflicts with another installed package.
        """
        try:
            return importlib.import_module(cls.module)
        except ImportError as error:
            if error.name is not None and error.name.partition(".")[0] != cls.package:
                raise ImportError(f"the {cls.package} logger cannot be loaded: {error}; {_LEAVE_OUT}") from error
            raise MissingPackageError(
                f"the {cls.package} logger", cls.package, extra="loggers", setting="loggers", hint=f", or {_LEAVE_OUT}"
            ) from error
        except Exception as error:  # of protobuf, where another package was built with another version
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ImportError(
                f"the {cls.package} logger cannot be loaded beside the other packages here ({first}): "
                f"pip install --upgrade {cls.package} protobuf, or {_LEAVE_OUT}"
            ) from error

    def table(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._open and rows:
            columns = list(rows[0])
            with _stdout_to_stderr():
                self._add_table(name, columns, [[_cell(row.get(column)) for column in columns] for row in rows])

    def artifact(self, name: str, files: Sequence[Path]) -> None:
        if self._open and files:
            with _stdout_to_stderr():
                self._add_artifact(name, files)

    def close(self) -> None:
        if self._open:
            self._open = False
            with _stdout_to_stderr():
                self._end()

    @abstractmethod
    def _begin(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def _add_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None: ...

    @abstractmethod
    def _add_artifact(self, name: str, files: Sequence[Path]) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...


class RunLogger(ServiceLogger):
    """A service whose run takes all metrics of a step in one call."""

    _run: Any

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._last_step = step
        self._run.log({name: float(value) for name, value in metrics.items()}, step=step)

    def _end(self) -> None:
        self._run.finish()


class TensorBoardLogger(ServiceLogger):
    """Event files under `run_dir/tensorboard`; the tab "HParams" has the configuration, "Text" the tables.

    TensorBoard keeps no files: of an artifact it shows the paths.
    """

    package = "tensorboard"
    module = "torch.utils.tensorboard"

    def _begin(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None:
        self._writer = self.load().SummaryWriter(str(run_dir / "tensorboard"))
        if hyperparameters:
            rows = {
                name: value if isinstance(value, bool | int | float) else as_text(value)
                for name, value in _flat(hyperparameters)
            }
            self._writer.add_hparams(rows, {}, run_name=".")

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, float(value), step, new_style=True)
        self._last_step = step
        self._writer.flush()

    def _add_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        lines = [columns, ["---"] * len(columns), *rows]
        table = "\n".join("| " + " | ".join(map(_markdown_cell, line)) + " |" for line in lines)
        self._writer.add_text(name, table, self._last_step)

    def _add_artifact(self, name: str, files: Sequence[Path]) -> None:
        lines = [f"- `{file.resolve()}` ({file.stat().st_size:,} bytes)" for file in files]
        self._writer.add_text(f"artifacts/{name}", "\n".join(lines), self._last_step)

    def _end(self) -> None:
        self._writer.close()


class WandbLogger(RunLogger):
    """Weights & Biases: online with a key (`WANDB_API_KEY`, or `wandb login`), else offline under `run_dir/wandb`.

    `WANDB_MODE` takes precedence; `WANDB_PROJECT` names the project.
    """

    package = module = "wandb"
    offline_setting = "WANDB_MODE=offline"

    def _begin(self, run_dir: Path, hyperparameters: Mapping[str, Any]) -> None:
        self._run = self.load().init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run_dir.name,
            dir=str(run_dir),
            mode=os.environ.get("WANDB_MODE") or ("online" if _has_wandb_key() else "offline"),
            config=dict(hyperparameters),
        )
        self._run.define_metric("*", step_metric=_STEP)  # the x axis is our step, not W&B's count of rows

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self._last_step = step
        self._run.log({_STEP: step, **{name: float(value) for name, value in metrics.items()}})

    def _add_table(self, name: str, columns: list[str], rows: list[list[Any]]) -> None:
        table = self.load().Table(columns=columns, data=rows, allow_mixed_types=True)
        self._run.log({_STEP: self._last_step, name: table})

    def _add_artifact(self, name: str, files: Sequence[Path]) -> None:
        made = self.load().Artifact(artifact_name(self._run.id, name), type="model")
        for file in files:
            made.add_file(str(file), name=file.name)
        self._run.log_artifact(made)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings with their dotted names."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send what a package prints to standard error: standard output is for results."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _has_wandb_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    named = os.environ.get("NETRC")
    files = [Path(named)] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]
    return any(host in hosts_of_logins(file) for file in files)


def hosts_of_logins(file: Path) -> set[str]:
    """Return the hosts that a netrc file has a login for; empty if it cannot be read."""
    try:
        return set(netrc.netrc(file).hosts)
    except (OSError, netrc.NetrcParseError):
        return set()


def artifact_name(run: str, name: str) -> str:
    """Return a name with only the characters that services allow."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{run}-{name}")


def _cell(value: Any) -> Any:
    return value if value is None or isinstance(value, str | bool | int | float) else as_text(value)


def _markdown_cell(value: Any) -> str:
    """Return a cell of a Markdown table, with line breaks and bars escaped."""
    text = "" if value is None else str(value)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|").replace("\n", "<br>")


def as_text(value: Any) -> str:
    """Return a string unchanged, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


class PrometheusLogger(MetricsLogger):
    """Serves the latest value of every metric at `http://host:port/metrics` until it is closed.

    Args:
        port: 0 chooses a free port.
        host: address to listen on.

    Raises:
        UserError: the port cannot be opened.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"mini_agentic_rl_training_{name}", text, labels, registry=registry)

        self._metric = gauge("metric", "Latest value of a metric of metrics.jsonl.", "name")
        self._step = gauge("step", "Step of the latest values.")
        self._logged = gauge("logged_seconds", "Time of the latest values, in seconds since the epoch.")
        self._done = gauge("phase_done", "Units of a phase that are done.", "phase")
        self._total = gauge("phase_total", "Units of a phase, if their number is known.", "phase")
        self._phase = ""
        self._closed = False
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UserError(
                f"port {port} at {host} cannot be opened for the metrics of the run: {error.strerror or error}",
                setting="metrics_port",
            ) from error
        self.port: int = self._server.server_port
        logger.info("metrics for Prometheus: http://%s:%d/metrics", host, self.port)

    def phase(self, name: str, total: int | None = None) -> None:
        self._phase = name
        self._done.labels(name).set(0)
        if total is not None:
            self._total.labels(name).set(total)

    def advance(self, n: int = 1) -> None:
        self._done.labels(self._phase).inc(n)

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        for name, value in metrics.items():
            self._metric.labels(name).set(float(value))
        self._step.set(step)
        self._logged.set(time.time())

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


_BuiltIn = Literal["console", "jsonl", "tensorboard", "wandb"]
LOGGERS: Final[tuple[str, ...]] = get_args(_BuiltIn)
"""Names of the built-in loggers."""

Maker: TypeAlias = Callable[[Path, Mapping[str, Any]], MetricsLogger]
"""Makes a logger from the run's folder and the run's configuration as JSON values."""

if TYPE_CHECKING:
    LoggerName: TypeAlias = str
else:  # the built-in names and those of plugins
    LoggerName = Annotated[_BuiltIn, choices_or_plugin("loggers")]

_SERVICES: Final[dict[str, Maker]] = {"tensorboard": TensorBoardLogger, "wandb": WandbLogger}


def check_loggers(names: Sequence[str]) -> None:
    """Import the packages of the loggers, so that a run ends before its first step if one is missing.

    Raises:
        UserError: an unknown name, or the package of a logger is not installed or cannot be imported.
    """
    makers = [_maker(name) for name in names if name not in ("console", "jsonl")]
    try:
        for maker in makers:
            if isinstance(maker, type) and issubclass(maker, ServiceLogger):
                maker.load()
    except UserError:
        raise
    except ImportError as error:
        raise UserError(str(error), setting="loggers") from error


def make_logger(
    names: Sequence[str],
    run_dir: str | Path,
    *,
    keep_rows: int | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
) -> MultiLogger:
    """Return one logger that passes everything on to the named ones.

    A service that cannot start is left out with a warning.

    Args:
        names: any of `LOGGERS` or of a plugin; a repeated name counts once.
        run_dir: existing folder of the run, for files.
        keep_rows: rows of metrics to keep when a run is continued (see `JsonlLogger`).
        hyperparameters: the configuration of the run, as JSON values, for services that keep it.

    Raises:
        UserError: see `check_loggers`.
    """
    check_loggers(names)
    made: list[MetricsLogger] = []
    try:
        for name in dict.fromkeys(names):
            made.append(_make(name, Path(run_dir), keep_rows, hyperparameters or {}))
    except BaseException:
        MultiLogger(made).close()
        raise
    return MultiLogger(made)


def _maker(name: str) -> Maker:
    """Return the maker of a service's logger.

    Raises:
        UserError: there is no such logger, or its plugin cannot be loaded.
    """
    make: Maker | None = _SERVICES.get(name) or load_plugin("loggers", name, setting="loggers")
    if make is None:
        raise UserError(
            f"unknown logger {name!r}; choose from {', '.join(LOGGERS)}{or_plugin('loggers')}", setting="loggers"
        )
    return make


def _make(name: str, run_dir: Path, keep_rows: int | None, hyperparameters: Mapping[str, Any]) -> MetricsLogger:
    if name == "console":
        return ConsoleLogger()
    if name == "jsonl":
        return JsonlLogger(run_dir / "metrics.jsonl", keep_rows=keep_rows)
    maker = _maker(name)
    try:
        made = maker(run_dir, hyperparameters)
        if not isinstance(made, MetricsLogger):
            raise TypeError(f"{type(made).__name__} is not a MetricsLogger")
        return GuardedLogger(name, made)
    except Exception as error:  # of a foreign package, and of the network behind it
        first = without_secrets(next(iter(str(error).strip().splitlines()), type(error).__name__))
        setting = getattr(maker, "offline_setting", None)
        hint = f"; {setting} keeps it on this computer" if setting else ""
        logger.warning("the %s logger could not begin (%s): the run goes on without it%s", name, first, hint)
        return MetricsLogger()
