"""The folder that mkdocs builds: every page with its links as they are there, pictures, generated pages, llms.txt."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from .generated import generated_pages
from .llms import llms_text
from .markdown import anchors, links, with_anchors, with_links, without_breaks
from .sources import CHINESE, ROOT, on_the_site, pages, resolved, text_of


def gather(folder: Path) -> None:
    """Fill a folder with the pages of the site; what it held is removed.

    Raises:
        FileNotFoundError: a page links to a file that is not there.
    """
    if folder.exists():
        shutil.rmtree(folder)
    places = pages()
    for page, place in places.items():
        text = text_of(page)
        for _, target in links(text):
            path, _ = resolved(page, target)
            if path not in places:
                _copy(path, folder / on_the_site("docs/index.md", f"../{path}", places | {"docs/index.md": "index.md"}))
        # The site has a switch between languages; a page of one language cannot link to one of another there.
        text = re.sub(r"^\[[^\]]*\]\(README[^)]*\)\n\n", "", text, flags=re.MULTILINE)
        if page.endswith(CHINESE):
            # An English page without a Chinese one stands on both sides of the site, and links to English headings.
            text = with_anchors(text, anchors(text_of(page.removesuffix(CHINESE) + ".md")))
        if page.endswith((CHINESE, "zh-CN.md")):
            text = without_breaks(text)
        changed = with_links(text, lambda target, page=page: on_the_site(page, target, places))
        _write(folder / place, changed)
    for name, text in generated_pages().items():
        _write(folder / "reference" / name, text)
    _write(folder / "llms.txt", llms_text())
    shutil.copy(ROOT / "docs/site.css", folder / "site.css")


def _copy(path: str, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / path, to)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
