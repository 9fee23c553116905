"""Reading Markdown as GitHub and the site do: text outside of code, links, headings and their anchors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2[^\n]*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(rf"{FENCE.pattern}|(?<!`)(`+)(?!`)(.+?)(?<!`)\3(?!`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"(?P<open>\]\(|(?:href|src)=\")(?P<target>[^)\"\s]+)(?P<close>[)\"])")
_BREAK = re.compile(
    r"(?<=[\u3001-\u9fff\uff01-\uff60])\n {0,6}(?=[\u3001-\u9fff\uff01-\uff60])"
    r"|(?<=[，。；：、！？（）])\n {0,6}(?=[`\[A-Za-z])"
)
_HEADING = re.compile(r"^(#{1,6}) +(.+?) *#*$", re.MULTILINE)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def slug(heading: str, separator: str = "-") -> str:
    """Return the anchor of a heading, as GitHub makes it: letters of any script, digits, underscores and hyphens.

    The site's table of contents is made with it too, so that a link to an anchor holds in both places.
    """
    plain = re.sub(r"<[^>]+>|\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", separator)


def without_fences(text: str) -> str:
    """Return a page without its blocks of code; the numbers of the lines stay."""
    return FENCE.sub(lambda found: "\n" * found[0].count("\n"), text)


def headings(text: str) -> list[tuple[int, str]]:
    """Return the level and the text of each heading."""
    return [(len(found[1]), found[2]) for found in _HEADING.finditer(without_fences(text))]


def anchors(text: str) -> list[str]:
    """Return the anchor of each heading, to which a link may lead; equal headings are numbered."""
    found: list[str] = []
    seen: dict[str, int] = {}
    for _, heading in headings(text):
        name = slug(heading)
        number = seen[name] = seen.get(name, -1) + 1
        found.append(f"{name}-{number}" if number else name)
    return found


def _outside(code: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """Return a page of which everything but the code is changed, piece by piece."""
    kept: list[str] = []
    start = 0
    for found in code.finditer(text):
        kept += [change(text[start : found.start()]), found[0]]
        start = found.end()
    return "".join([*kept, change(text[start:])])


def without_breaks(text: str) -> str:
    """Return a page whose lines are joined where both sides are Chinese: a browser shows a break as a space there."""
    return _outside(FENCE, text, lambda prose: _BREAK.sub("", prose))


def with_anchors(text: str, names: Sequence[str]) -> str:
    """Return a page whose headings can be reached by `names` as well, one for each in their order."""
    left = iter(names)
    return _outside(
        FENCE, text, lambda prose: _HEADING.sub(lambda found: f'<a id="{next(left)}"></a>\n\n{found[0]}', prose)
    )


def links(text: str) -> Iterator[tuple[int, str]]:
    """Give the line, from 1, and the target of each link and picture that leads to a file or an anchor here."""
    plain = _CODE.sub(lambda found: "\n" * found[0].count("\n"), text)
    for found in _LINK.finditer(plain):
        if not _ELSEWHERE.match(found["target"]):
            yield plain.count("\n", 0, found.start()) + 1, found["target"]


def inline_code(text: str) -> set[str]:
    """Return what stands between backticks, outside of blocks of code, each in one line."""
    return {" ".join(found[4].split()) for found in _CODE.finditer(text) if found[4]}


def with_links(text: str, change: Callable[[str], str]) -> str:
    """Return a page whose links to files and anchors here are changed; code stays as it is."""

    def changed(found: re.Match[str]) -> str:
        if _ELSEWHERE.match(found["target"]):
            return found[0]
        return f"{found['open']}{change(found['target'])}{found['close']}"

    return _outside(_CODE, text, lambda prose: _LINK.sub(changed, prose))
