"""docs/learning-from-use.md: a server that keeps a session, the snippet that opens and rewards it, and the learner."""

from __future__ import annotations

from pages.shell import free_port, shell_line
from pages.snippets import python_block

PAGE = "docs/learning-from-use.md"
SESSION = python_block(PAGE, "sessions.reward(opened.id, 1.0)")


def test_a_session_is_opened_and_judged_later_and_the_learner_finds_it(here):
    port = free_port()
    found = {}

    def read():
        found["told"] = SESSION.run({"127.0.0.1:8000": f"127.0.0.1:{port}"}).printed

    shell_line(PAGE, "serve --learn-from-use").serve(read, port=port)
    assert found["told"].split() == ["judged"]
    # a session alone with a new key waits
    told = shell_line(PAGE, "learn runs/use").run("--once", "--min-sessions", "1")
    assert told.split("; ") == ["no step was taken", "version 0\n"]
