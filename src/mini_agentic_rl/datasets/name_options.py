"""Options behind a name, as `chain_sum?min_terms=2&max_terms=3`: each value is JSON, or else text."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

from ..errors import UserError

_MOST = 64


def named_options(text: str, *, setting: str) -> tuple[str, dict[str, Any]]:
    """Return a name and the options behind its question mark.

    Args:
        setting: the field whose value the text is.

    Raises:
        UserError: an option is not written so.
    """
    name, _, options = text.partition("?")
    try:
        pairs = parse_qsl(options, keep_blank_values=True, strict_parsing=bool(options), max_num_fields=_MOST)
    except ValueError as error:
        raise UserError(f"{text}: options are written as ?key=value&key=value ({error})", setting=setting) from error
    return name, {key: _value(value) for key, value in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
