"""Links lead to files that are there and to their headings; Chinese pages say what the English ones say."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator

from .markdown import FENCE, anchors, headings, inline_code, links
from .sources import CHINESE, ROOT, pages, resolved, text_of


def broken_links() -> Iterator[str]:
    """Give `page:line: target` for every link that leads nowhere, over all pages. Nothing is asked of the network."""
    known = {page: anchors(text_of(page)) for page in pages()}
    for page in known:
        for line, target in links(text_of(page)):
            path, anchor = resolved(page, target)
            if not (ROOT / path).exists():
                yield f"{page}:{line}: {target}: there is no such file"
            elif anchor and path in known and anchor not in known[path]:
                yield f"{page}:{line}: {target}: the page has no such heading"


def chinese_pages() -> list[str]:
    """Return the Chinese pages beside English ones, README left out, whose tests are older."""
    return [page for page in pages() if page.endswith(CHINESE)]


def differences(page: str) -> Iterator[str]:
    """Give what a Chinese page has otherwise than the English one.

    Compared are headings by level, links, tables and blocks of code in their order, and the names between backticks.
    """
    english = page.removesuffix(CHINESE) + ".md"
    if not (ROOT / english).exists():
        yield f"{page}: there is no {english}"
        return
    for what, left, right in zip(
        ("levels of headings", "links", "rows of tables", "blocks of code"),
        _shape(english),
        _shape(page),
        strict=True,
    ):
        same = same_code if what == "blocks of code" else operator.eq
        unlike = [pair for pair in zip(left, right, strict=False) if not same(*pair)]
        if unlike or len(left) != len(right):
            first = unlike[0] if unlike else (len(left), len(right))
            yield f"{page}: {what} differ from {english}: {first[0]!r} there, {first[1]!r} here"
    there, here = inline_code(text_of(english)), inline_code(text_of(page))
    if there != here:
        yield f"{page}: names differ from {english}: {sorted(there - here)} there, {sorted(here - there)} here"


_WITH_COMMENTS = ("python", "bash", "toml", "yaml")
_COMMENT = re.compile(r"(^|[ \t]+)# .*$", re.MULTILINE)
_CHINESE_LETTER = re.compile(r"[\u4e00-\u9fff]")


def same_code(english: str, chinese: str) -> bool:
    """Say whether blocks are the same but for what a reader reads: comments, and in plain text lines in Chinese."""
    language = english.strip("`~ ").partition("\n")[0]
    if language in _WITH_COMMENTS:
        return _COMMENT.sub("", english) == _COMMENT.sub("", chinese)
    if language in ("", "text"):
        left, right = english.splitlines(), chinese.splitlines()
        lines = zip(left, right, strict=False)
        return len(left) == len(right) and all(a == b or _CHINESE_LETTER.search(b) for a, b in lines)
    return english == chinese


def _shape(page: str) -> tuple[list[object], ...]:
    text = text_of(page)
    targets = [resolved(page, target)[0].replace(CHINESE, ".md") for _, target in links(text)]
    targets = [path.replace("README.zh-CN.md", "README.md") for path in targets]
    rows = [line.count(" |") for line in text.splitlines() if line.startswith("|")]
    return [level for level, _ in headings(text)], targets, rows, [found[0] for found in FENCE.finditer(text)]
