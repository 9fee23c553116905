"""The site: its links, its navigation, the pages that are made from the code, llms.txt, and what Chinese pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documentation.checks import broken_links, chinese_pages, differences, same_code
from documentation.declared import commands_page, settings_classes, settings_page
from documentation.gather import gather
from documentation.llms import FILE, entries, llms_text, navigation
from documentation.markdown import anchors, links, slug, with_links, without_breaks
from documentation.sources import pages, resolved, text_of

from mini_agentic_rl.algorithm import GRPOSettings
from mini_agentic_rl.commands import TrainConfig
from mini_agentic_rl.commands.options import option_name
from mini_agentic_rl.config import WITHOUT_OPTION


@pytest.fixture(scope="module")
def gathered(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    gather(folder)
    return folder


def test_no_link_of_any_page_is_broken():
    assert list(broken_links()) == []


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("The run folder", "the-run-folder"),
        ("`init()`: what other libraries record", "init-what-other-libraries-record"),
        ("From clone to a trained agent (OpenAI SDK)", "from-clone-to-a-trained-agent-openai-sdk"),
        ("agent-lightning 1.0", "agent-lightning-10"),
        ("运行文件夹", "运行文件夹"),
    ],
)
def test_an_anchor_is_the_one_that_github_makes(heading, anchor):
    assert slug(heading) == anchor


def test_a_link_to_a_heading_is_seen_and_code_is_left_alone():
    text = '# One\n\n## One\n\n[a](b.md#c) `[x](y.md)`\n\n```text\n# no heading\n[x](z.md)\n```\n<img src="p.svg">\n'
    assert anchors(text) == ["one", "one-1"]
    assert list(links(text)) == [(5, "b.md#c"), (11, "p.svg")]
    changed = with_links(text, lambda target: f"to/{target}")
    assert "[a](to/b.md#c) `[x](y.md)`" in changed
    assert '[x](z.md)\n```\n<img src="to/p.svg">' in changed


def test_a_break_between_chinese_letters_is_no_space_on_the_site():
    text = "一行，\n  二行\nand three\n\n四\n\n```text\n五\n六\n```\n"
    assert without_breaks(text) == "一行，二行\nand three\n\n四\n\n```text\n五\n六\n```\n"


@pytest.mark.parametrize(
    ("english", "chinese", "same"),
    [
        ("```bash\nls a  # all\n```", "```bash\nls a  # 全部\n```", True),
        ("```bash\nls a  # all\n```", "```bash\nls b  # 全部\n```", False),
        ("```text\nstep 1\nthen more\n```", "```text\nstep 1\n然后更多\n```", True),
        ("```text\nstep 1\nthen more\n```", "```text\nstep 2\n然后更多\n```", False),
        ("```json\n{}  # a\n```", "```json\n{}  # 一\n```", False),
    ],
)
def test_only_comments_and_plain_text_of_a_block_may_be_in_chinese(english, chinese, same):
    assert same_code(english, chinese) == same


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


def test_a_chinese_page_is_reached_by_the_anchors_of_the_english_one_as_well(gathered):
    page = (gathered / "commands.zh.md").read_text(encoding="utf-8")
    assert page.count('<a id="loggers"></a>\n\n## ') == 1
    assert page.count("<a id=") == len(anchors(page)) > 5


def test_llms_txt_is_what_navigation_and_pages_say():
    assert FILE.read_text(encoding="utf-8") == llms_text(), "write it: PYTHONPATH=dev python -m documentation llms"


def test_the_page_of_settings_has_each_setting_of_a_training_with_its_help():
    page = settings_page()
    assert {GRPOSettings, TrainConfig} <= set(settings_classes())
    for name, setting in TrainConfig.settings().items():
        row = re.search(rf"^\| `{setting.path[-1]}` \|.*$", page, re.MULTILINE)
        assert row, name
    field = GRPOSettings.model_fields["samples_per_prompt"]
    assert (
        f"| `samples_per_prompt` | `int` | `{field.default}` | {' '.join((field.description or '').split())} |" in page
    )


def test_the_page_of_commands_has_each_option_of_a_training_and_every_command():
    page = commands_page()
    train = page.partition("## mini-agentic-rl train\n")[2].partition("\n## ")[0]
    options = set(re.findall(r"^\| `(--[\w-]+)", train, re.MULTILINE))
    assert {"--learning-rate", "--config", "--preset", "--json", "--max-staleness"} <= options
    settings = TrainConfig.settings().values()
    assert {option_name(setting) for setting in settings if setting.panel != WITHOUT_OPTION} <= options
    assert "## mini-agentic-rl rollouts list\n" in page


@pytest.mark.parametrize("page", chinese_pages())
def test_a_chinese_page_says_what_the_english_one_says(page):
    assert list(differences(page)) == []


def test_a_name_that_changed_on_one_side_alone_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("documentation.checks.ROOT", tmp_path)
    monkeypatch.setattr("documentation.sources.ROOT", tmp_path)
    (tmp_path / "a.md").write_text("Give `--new` and `x`.\n\n```text\n`y`\n```\n", encoding="utf-8")
    (tmp_path / "a.zh.md").write_text("用 `x` 和 `--old`。\n\n```text\n`y`\n```\n", encoding="utf-8")
    assert list(differences("a.zh.md")) == ["a.zh.md: names differ from a.md: ['--new'] there, ['--old'] here"]


def test_every_page_of_docs_has_a_chinese_one():
    english = [page for page in pages() if page.startswith("docs/") and not page.endswith(".zh.md")]
    assert [page for page in english if page.removesuffix(".md") + ".zh.md" not in pages()] == []


@pytest.mark.parametrize("page", chinese_pages())
def test_a_link_of_a_chinese_page_leads_to_the_chinese_side(page):
    targets = {resolved(page, target)[0] for _, target in links(text_of(page))}
    assert [path for path in sorted(targets) if path.removesuffix(".md") + ".zh.md" in pages()] == []
