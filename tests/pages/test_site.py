"""The site: its links, its navigation, the pages that are made from the code, llms.txt, and what Chinese pages say."""

from __future__ import annotations

from pathlib import Path

import pytest
from documentation.checks import broken_links, chinese_pages, differences
from documentation.gather import gather
from documentation.llms import FILE, entries, llms_text, navigation
from documentation.markdown import links
from documentation.sources import pages, resolved, text_of


@pytest.fixture(scope="module")
def gathered(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    gather(folder)
    return folder


def test_no_link_of_any_page_is_broken():
    assert list(broken_links()) == []


def test_every_page_is_in_the_navigation_once(gathered):
    placed = [place for _, _, place in entries(navigation())]
    assert sorted(placed) == sorted(set(placed))
    found = {path.relative_to(gathered).as_posix() for path in gathered.rglob("*.md")}
    assert {path for path in found if not path.endswith(".zh.md")} == set(placed)


def test_a_link_of_a_gathered_page_leads_to_a_file_of_the_site(gathered):
    missing = []
    for page in gathered.rglob("*.md"):
        for line, target in links(page.read_text(encoding="utf-8")):
            path = target.partition("#")[0]
            if path and not (page.parent / path).exists():
                missing.append(f"{page.relative_to(gathered)}:{line}: {target}")
    assert missing == []
    assert (gathered / "index.md").read_text(encoding="utf-8").startswith("# mini-agentic-rl")


def test_llms_txt_is_what_navigation_and_pages_say():
    assert FILE.read_text(encoding="utf-8") == llms_text(), "write it: PYTHONPATH=dev python -m documentation llms"


@pytest.mark.parametrize("page", chinese_pages())
def test_a_chinese_page_says_what_the_english_one_says(page):
    assert list(differences(page)) == []


def test_every_tutorial_has_a_chinese_page():
    english = [page for page in pages() if page.startswith("docs/tutorials/") and not page.endswith(".zh.md")]
    assert [page for page in english if page.removesuffix(".md") + ".zh.md" not in pages()] == []


@pytest.mark.parametrize("page", chinese_pages())
def test_a_link_of_a_chinese_page_leads_to_the_chinese_side(page):
    targets = {resolved(page, target)[0] for _, target in links(text_of(page))}
    assert [path for path in sorted(targets) if path.removesuffix(".md") + ".zh.md" in pages()] == []
