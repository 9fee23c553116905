"""What holds for the logger of every tracking service, wherever it is defined."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.metrics import make_logger


def a_key_puts_it_online_and_its_own_variable_decides_before_that(
    name: str, login: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begin runs without a key, with a login in the file `login`, with a key, and with the variable of its mode."""
    modes = []

    class Run:
        def define_metric(self, *_, **__): ...
        def finish(self): ...

    def init(**how):
        modes.append((how["mode"], how["config"]))
        return Run()

    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(init=init))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.chdir(folder)
    for variable in ("NETRC", f"{name.upper()}_API_KEY", f"{name.upper()}_MODE"):
        monkeypatch.delenv(variable, raising=False)

    def begin():
        make_logger([name], folder, hyperparameters={"seed": 1}).close()

    begin()
    file = folder / login
    file.parent.mkdir(exist_ok=True)
    file.write_text("machine api.wandb.ai login user password secret\n")
    begin()
    file.unlink()
    monkeypatch.setenv(f"{name.upper()}_API_KEY", "secret")
    begin()
    monkeypatch.setenv(f"{name.upper()}_MODE", "offline")
    begin()
    assert modes == [(mode, {"seed": 1}) for mode in ("offline", "online", "online", "offline")]


def one_that_cannot_begin_is_left_out(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Begin a run while the service is away: the log says how to keep the run on this computer, and no secret."""

    def init(**how):
        raise ConnectionError("nobody answers at https://api.example?api_key=secret1\nmore")

    monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(init=init))
    with make_logger(["jsonl", name], folder) as logger:
        logger.log({"reward": 1.0}, step=1)
    (told,) = caplog.messages
    assert f"the {name} logger could not begin (nobody answers" in told
    assert f"{name.upper()}_MODE=offline" in told
    assert "secret1" not in told


def a_missing_package_is_named_with_its_extra(
    name: str, module: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask for a logger whose package is not installed."""
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"{name}.*mini-agentic-rl\[loggers\]"):
        make_logger(["jsonl", name], folder)


def offline_it_writes_into_the_run_folder(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Log with the real package, whose own output may not go to standard output."""
    pytest.importorskip(name, reason=f"{name} is not installed: its logger is left unchecked")
    monkeypatch.setenv(f"{name.upper()}_MODE", "offline")
    with make_logger([name], folder, hyperparameters={"seed": 31415926}) as logger:
        logger.log({"sft/loss": 2.5}, step=8)
        logger.log({"reward": 0.015625}, step=1)
    written = b"".join(path.read_bytes() for path in (folder / name).rglob("*") if path.is_file())
    assert b"31415926" in written
    told = capfd.readouterr()
    assert told.out == ""
    assert "ignored" not in told.err
