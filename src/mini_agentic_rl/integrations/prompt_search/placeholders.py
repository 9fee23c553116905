"""The check that a rewritten template can stand in for the one it was made from: the agent fills in the same names."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator
from typing import Any

from ...types import PromptTemplate

_POML_NAME = re.compile(r"\{\{\s*([A-Za-z_]\w*)")


def placeholders(prompt: PromptTemplate) -> dict[str, str]:
    """Return the name of each value that the template takes, and the placeholder as it is first written.

    Raises:
        ValueError: the template's syntax is wrong.
    """
    if prompt.engine == "f-string":
        return dict(reversed(list(_f_string_fields(prompt.template))))
    if prompt.engine == "jinja":
        return {name: f"{{{{ {name} }}}}" for name in sorted(_jinja_names(prompt.template))}
    return {name: f"{{{{ {name} }}}}" for name in _POML_NAME.findall(prompt.template)}


def why_unusable(original: PromptTemplate, template: str) -> str | None:
    """Return why `template` cannot replace that of `original`; None when it can."""
    if not template.strip():
        return "it is empty"
    changed = original.model_copy(update={"template": template})
    try:
        wanted, found = placeholders(original), placeholders(changed)
    except ValueError as error:
        return f"its placeholders cannot be read ({error})"
    lost = [wanted[name] for name in wanted if name not in found]
    if lost:
        return f"it lost the placeholder {', '.join(lost)}"
    new = [found[name] for name in found if name not in wanted]
    if new:
        return f"nothing fills in its placeholder {', '.join(new)}"
    return _why_unformattable(changed, wanted) if original.engine == "f-string" else None


class _Probe:
    """Stands for any value: every attribute, item, conversion and format of it is its mark."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __getattr__(self, name: str) -> _Probe:
        return self

    def __getitem__(self, key: Any) -> _Probe:
        return self

    def __format__(self, spec: str) -> str:
        return self._mark

    def __str__(self) -> str:
        return self._mark

    __repr__ = __str__


def _why_unformattable(prompt: PromptTemplate, names: dict[str, str]) -> str | None:
    marks = {name: f"\x00{index}\x00" for index, name in enumerate(names)}
    try:
        text = prompt.format(**{name: _Probe(mark) for name, mark in marks.items()})
    except (ValueError, LookupError, TypeError) as error:
        return f"it cannot be filled in ({type(error).__name__}: {error})"
    lost = [names[name] for name, mark in marks.items() if mark not in text]
    return f"it never shows the value of {', '.join(lost)}" if lost else None


def _f_string_fields(template: str) -> Iterator[tuple[str, str]]:
    for _, field, spec, conversion in string.Formatter().parse(template):
        if field is None:
            continue
        written = field + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
        yield re.split(r"[.\[]", field, maxsplit=1)[0], f"{{{written}}}"
        if spec:
            yield from _f_string_fields(spec)


def _jinja_names(template: str) -> set[str]:
    from jinja2 import TemplateSyntaxError
    from jinja2.meta import find_undeclared_variables
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment()
    try:
        environment.from_string(template)  # also refuses filters that do not exist
        return find_undeclared_variables(environment.parse(template))
    except TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.message}") from error
