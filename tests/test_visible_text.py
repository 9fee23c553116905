"""Foreign text that would steer a terminal, at every place where the commands and the log show it."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import random
import re
import unicodedata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.commands.store_commands import as_json, span_table, worker_table
from mini_agentic_rl.logging import setup_logging
from mini_agentic_rl.store import SqlLightningStore
from mini_agentic_rl.types import Span, Worker
from mini_agentic_rl.visible_text import VisibleConsole, visible, visible_json, visible_line

PIECES = [
    "\x1b[2J", "\x1b]0;title\x07", "\x1b]52;c;ZXZpbA==\x07", "\x1b]8;;file:///etc/passwd\x1b\\", "\x9b31m", "\x90q\x9c",
    "\r", "\x08\x08\x08", "\x0c", "\x0b", "\x7f", "\u202e", "\u2066", "\u2028", "\x00", "\ud800", "\x1bc",
    "\x1b[?1049h", "[link=file:///etc/passwd]x[/link]", "[red]", "[/]", "plain", "é", "日本", "\t", "\n", "\\x1b",
]  # fmt: skip


@pytest.mark.parametrize("encoding", ["cp1252", "gbk"])
def test_what_the_output_cannot_encode_is_an_escape_and_no_error(encoding, tmp_path):
    rows = [{"question": f"笑 {number}", "answer": "😀"} for number in range(8)]
    (tmp_path / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    result = CliRunner(charset=encoding).invoke(app, ["dataset", str(tmp_path / "rows.json")])
    assert result.exit_code == 0, result.output
    assert r"\U0001f600" in result.output


def steering(text: str) -> str:
    """Return the first character that would steer a terminal, apart from rich's own colours; empty if none would."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return next((c for c in plain if (c not in "\t\n" and unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp"))
                 or c in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"), "")  # fmt: skip


def foreign(draw: random.Random) -> str:
    return "".join(draw.choices(PIECES, k=draw.randrange(1, 12)))


def test_foreign_text_on_a_console() -> None:
    draw = random.Random(23)
    for _ in range(50):
        text = foreign(draw)
        assert steering(visible(text)) == ""
        assert "\n" not in visible_line(text)
        value = {"a": text.replace("\ud800", "")}
        shown = visible_json(json.dumps(value, ensure_ascii=False))
        assert (steering(shown), json.loads(shown)) == ("", value)
        told = io.StringIO()
        console = VisibleConsole(file=told, force_terminal=True, width=60)
        span = Span(rollout_id="r", attempt_id="a", sequence_id=1, trace_id="t", span_id="s", name=text)
        span.attributes = {text: text, "n": [text]}
        console.print(span_table([as_json(span)]))
        console.print(worker_table([as_json(Worker(worker_id=text, current_rollout_id=text))]))
        console.print(text)
        assert steering(told.getvalue()) == "", told.getvalue()
        assert "\x1b]8" not in told.getvalue()


def test_foreign_text_in_the_log(tmp_path: Path) -> None:
    draw = random.Random(24)
    told = io.StringIO()
    for color in (True, False):
        console = VisibleConsole(file=told, force_terminal=color, width=100)
        setup_logging("INFO", console=console, color=color, files=tmp_path / f"{color}.log")
        for _ in range(20):
            logging.getLogger("mini_agentic_rl.test").warning("said %s", foreign(draw))
            assert steering(told.getvalue()) == "", told.getvalue()[-300:]
            told.seek(0)
            told.truncate()
        setup_logging("WARNING")
        assert steering((tmp_path / f"{color}.log").read_text(encoding="utf-8")) == ""


@pytest.mark.parametrize("options", [["show", "ROLLOUT"], ["list", "--json"], ["show", "\x1b[2Jnone"]])
async def test_foreign_text_in_the_commands_of_the_store(options: list[str], tmp_path: Path) -> None:
    text, path = "\x1b[2J\x9b31m\u202e[link=x]y", tmp_path / "\x1b[31mstore.db"
    store = SqlLightningStore(path)
    rollout = await store.start_rollout({"question": text, text: 1}, worker_id=text)
    attempt_id = rollout.attempt.attempt_id
    ids = {"rollout_id": rollout.rollout_id, "attempt_id": attempt_id, "trace_id": "t", "span_id": "s"}
    span = Span(**ids, sequence_id=1, name=text, attributes={text: text})
    await store.add_span(span)
    await store.update_attempt(rollout.rollout_id, attempt_id, status="failed", metadata={"error": text})
    await store.close()
    words = [rollout.rollout_id if word == "ROLLOUT" else word for word in options]
    command = ["rollouts", *words, "--store", str(path)]
    result = await asyncio.to_thread(CliRunner().invoke, app, command, env={"TERM": "xterm", "FORCE_COLOR": "1"})
    assert result.output
    assert steering(result.output) == ""
