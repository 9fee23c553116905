"""Links lead to files that are there and to their headings; Chinese pages say what the English ones say."""

from __future__ import annotations

from collections.abc import Iterator

from .markdown import FENCE, anchors, headings, links
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
    """Give what a Chinese page has otherwise than the English one: headings by level, code, and links in order."""
    english = page.removesuffix(CHINESE) + ".md"
    if not (ROOT / english).exists():
        yield f"{page}: there is no {english}"
        return
    for what, left, right in zip(
        ("levels of headings", "blocks of code", "links", "rows of tables"),
        _shape(english),
        _shape(page),
        strict=True,
    ):
        if left != right:
            first = next(
                (pair for pair in zip(left, right, strict=False) if pair[0] != pair[1]), (len(left), len(right))
            )
            yield f"{page}: {what} differ from {english}: {first[0]!r} there, {first[1]!r} here"


def _shape(page: str) -> tuple[list[object], ...]:
    text = text_of(page)
    targets = [resolved(page, target)[0].replace(CHINESE, ".md") for _, target in links(text)]
    targets = [path.replace("README.zh-CN.md", "README.md") for path in targets]
    rows = [line.count(" |") for line in text.splitlines() if line.startswith("|")]
    return [level for level, _ in headings(text)], [found[0] for found in FENCE.finditer(text)], targets, rows
