"""llms.txt: what there is to read, for language models: the pages by their kind, each with its first sentence.

It is made of the navigation of mkdocs.yml and the beginnings of the pages. `python -m documentation llms` writes it; a
test compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from .generated import generated_pages
from .markdown import FENCE
from .sources import CHINESE, ROOT, pages, text_of

FILE = ROOT / "docs/llms.txt"


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml; names of Python objects, which are the site's matter, are left out."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)
_Loader.add_multi_constructor("!", lambda loader, suffix, node: None)


def navigation() -> list[Any]:
    """Return `nav` of mkdocs.yml."""
    return list(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), _Loader)["nav"])


def entries(nav: list[Any], section: str = "") -> Iterator[tuple[str, str, str]]:
    """Give the section, the title and the place of each page of a navigation, in its order."""
    for entry in nav:
        for title, value in entry.items():
            if isinstance(value, list):
                yield from entries(value, section or title)
            else:
                yield section, title, value


def llms_text() -> str:
    """Return the text of llms.txt. Its links lead to the Markdown of the pages, which the site has beside them.

    Raises:
        KeyError: the navigation names a page that there is not.
    """
    texts = {place: text_of(page) for page, place in pages().items() if not place.endswith(CHINESE)}
    texts |= {f"reference/{name}": text for name, text in generated_pages().items()}
    lines = ["# mini-agentic-rl", "", f"> {_first_sentence(text_of('README.md'))}", ""]
    lines += ["Commands for programs that drive this tool are in [commands.md](commands.md)."]
    last = ""
    for section, title, place in entries(navigation()):
        if section and section != last:
            lines += ["", f"## {section}", ""]
        elif not section and not last:
            lines += [""]
        last = section or last
        lines.append(f"- [{title}]({place}): {_first_sentence(texts[place])}")
    return "\n".join(lines) + "\n"


def _first_sentence(text: str) -> str:
    """Return the first sentence of the first paragraph that is no heading, picture, list, table or link alone."""
    for paragraph in re.split(r"\n\s*\n", FENCE.sub("", text)):
        one_line = " ".join(paragraph.split())
        if not one_line or re.match(r"#|!\[|[-*|<>]|\[[^\]]*\]\([^)]*\)$", one_line):
            continue
        sentence = re.split(r"(?<=[.!?])\s+(?=[A-Z`*\[“\"])", one_line)[0]
        return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence).rstrip(":")
    return ""
