"""The error that a person can mend, and how doors spell its settings."""

from __future__ import annotations

import logging
import pickle

from mini_agentic_rl.errors import UserError, log_failure


def _option(name: str) -> str | None:
    return f"--{name.replace('_', '-')}" if name in ("full_finetune", "quantization") else None


def test_a_message_spells_its_settings_as_python_or_as_a_command_does():
    text = "`embedded` cannot be trained: set `quantization=none`, or `quantization`"
    error = UserError(text, setting="full_finetune")
    assert str(error) == f"full_finetune: {text}"
    assert error.spelled(_option) == (
        "--full-finetune: `embedded` cannot be trained: set --quantization none, or --quantization"
    )
    assert UserError("is no address", setting="store").spelled(_option) == "store: is no address"


def test_an_error_keeps_its_setting_when_it_comes_from_another_process():
    copy = pickle.loads(pickle.dumps(UserError("is no address", setting="store")))

    assert (str(copy), copy.setting) == ("store: is no address", "store")


def test_a_failure_that_says_what_to_change_is_logged_in_one_line_and_any_other_with_its_traceback(caplog):
    logger = logging.getLogger("mini_agentic_rl.test_errors")
    for error in (UserError("no space is left"), KeyError("x")):
        try:
            raise error from OSError("disk")
        except (UserError, KeyError) as caught:
            log_failure(logger, caught, "could not record a call")

    told, found = caplog.records
    assert told.getMessage() == "could not record a call: no space is left"
    assert told.exc_info is None
    assert found.getMessage() == "could not record a call"
    assert "KeyError: 'x'" in caplog.text
