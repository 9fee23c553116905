"""What each test would make again, made once for a process and its forks.

A client of httpx reads the certificates of all authorities when it is made, also one that speaks plain HTTP to a server
beside it: 20 to 30 ms of processor time. Typer makes all commands with all their options for each command line: 50 ms.
Most tests take less for all else.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import ssl
from collections.abc import Callable
from typing import Any

_CLIENTS = ("httpx", "httpx2")
"""The second is the one that newer versions of the OpenAI SDK bring."""


@functools.cache
def share() -> None:
    """Make them once from now on."""
    for package in _CLIENTS:
        with contextlib.suppress(ImportError):
            transports = importlib.import_module(f"{package}._transports.default")
            transports.create_ssl_context = _once_for_all_authorities(transports.create_ssl_context)
    import typer.testing

    typer.main.get_command = typer.testing._get_command = _once_for_our_commands(typer.main.get_command)


def make() -> None:
    """Make them now, for processes that are forked from this one."""
    share()
    import typer.main

    from mini_agentic_rl import cli

    typer.main.get_command(cli.app)
    for package in _CLIENTS:
        with contextlib.suppress(ImportError):
            importlib.import_module(package).Client().close()


def _once_for_all_authorities(make: Callable[..., ssl.SSLContext]) -> Callable[..., ssl.SSLContext]:
    """Return what makes one context; who names certificates gets one for himself."""
    made: dict[object, ssl.SSLContext] = {}

    def create_ssl_context(
        verify: object = True, cert: object = None, trust_env: bool = True, **more: object
    ) -> ssl.SSLContext:
        if verify is not True or cert is not None or more:
            return make(verify=verify, cert=cert, trust_env=trust_env, **more)
        chosen = (trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
        if chosen not in made:
            made[chosen] = make(trust_env=trust_env)
        return made[chosen]

    return create_ssl_context


def _once_for_our_commands(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return what makes the commands of the package once, and those of any other app each time."""
    made: list[Any] = []

    def get_command(app: Any) -> Any:
        from mini_agentic_rl import cli

        if app is not cli.app:
            return make(app)
        if not made:
            made.append(make(app))
        return made[0]

    return get_command
