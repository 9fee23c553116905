"""What mkdocs asks of this project: equations as MathML, pages gathered anew while it serves, Markdown beside HTML."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from latex2mathml.converter import convert

_served = False
_ALTERNATE = re.compile(r'(<link rel="alternate" href=")([^"]*)(?=" hreflang)')


def mathml(source: str, *rest: Any, **options: Any) -> str:
    """Return a ```math block as MathML, which browsers show without a script or a font of their own."""
    return f'<div class="math">{convert(" ".join(source.split()), display="block")}</div>'


def on_startup(command: str, dirty: bool) -> None:
    """Keep whether mkdocs serves."""
    global _served
    _served = command == "serve"


def on_pre_build(config: Any) -> None:
    """Gather the pages again while a server shows them, so that what is edited in docs/ is seen."""
    if _served:
        subprocess.run([sys.executable, "-m", "documentation", config.docs_dir], check=True)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Give the search dialog its missing name, and make the links between languages absolute if SITE_URL is set."""
    dialog = 'data-md-component="search" role="dialog"'
    output = output.replace(dialog, f'{dialog} aria-label="Search"')
    if not config.site_url:
        return output
    return _ALTERNATE.sub(lambda link: link[1] + urljoin(page.canonical_url, link[2]), output)


def on_post_build(config: Any) -> None:
    """Put the Markdown of every page beside its HTML: llms.txt leads to it."""
    pages = Path(config.docs_dir)
    for page in pages.rglob("*.md"):
        target = Path(config.site_dir) / page.relative_to(pages)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, target)
