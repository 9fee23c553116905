"""Commands of the application, run in this process."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from mini_agentic_rl.cli import app


def invoke(*words: object, **environment: str) -> Result:
    """Run a command with plain tables of 200 characters; `environment` has further variables."""
    return CliRunner().invoke(app, list(map(str, words)), env={"COLUMNS": "200", "TERM": "dumb", **environment})


def run(*words: object) -> tuple[int, str, str]:
    """Run a command; return exit code, standard output and standard error, or raise what the command raised."""
    result = CliRunner().invoke(app, list(map(str, words)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr
