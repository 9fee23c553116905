"""A command as it was written: its words, with what belongs to the rollout put in, and the files that it names."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from ...errors import UserError

_NAMED: Final = re.compile(r"\{(prompt|task_file|model|base_url)\}")


def split_words(command: str, setting: str) -> list[str]:
    """Return the words of a command, as a shell would part them; nothing else of a shell is done.

    A word that names a file here, relative to the working directory, becomes its absolute path: the command runs
    elsewhere.

    Raises:
        UserError: a quotation has no end, or there is no word at all.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UserError(f"{command!r} cannot be read: {str(error).lower()}", setting=setting) from None
    if not words:
        raise UserError("the command is empty", setting=setting)
    return [words[0] if "/" not in words[0] else _absolute(words[0]), *map(_absolute, words[1:])]


def fill_words(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the words with `{name}` replaced; other braces are left as they are."""
    return [_NAMED.sub(lambda found: values.get(found[1], found[0]), word) for word in words]


def _absolute(word: str) -> str:
    return str(Path(word).absolute()) if not os.path.isabs(word) and os.path.isfile(word) else word
