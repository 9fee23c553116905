"""The report is one whole file, whatever the run has to show, and shows nothing that it was not meant to run."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

from mini_agentic_rl.trainer.report import line_chart, write_report
from mini_agentic_rl.trainer.run_folder import RunFolder
from mini_agentic_rl.trainer.statistics import accuracy_row

VOID = {"meta", "br", "hr", "img", "input", "link"}
HOSTILE = '<script>alert("x")</script>&<img src=http://example.invalid/x.png onerror=alert(1)>'


class Page(HTMLParser):
    """Checks that every element is closed, and collects elements, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.begin({"model": "embedded", "note": HOSTILE})
    return folder


def _report(folder, summary=None, metrics_rows=(), transcripts=()) -> Page:
    path = write_report(folder, summary=summary or {}, metrics_rows=metrics_rows, transcripts=transcripts)
    return Page(path.read_text(encoding="utf-8"))


def test_the_report_shows_accuracies_with_their_intervals(folder):
    rows = [accuracy_row("before", 10, 200), accuracy_row("after SFT", 80, 200), accuracy_row("after RL", 160, 200)]
    page = _report(folder, {"accuracy": rows, "seed": 3, "versions": {"torch": "2.0"}, "seconds": {"SFT": 12.34}})
    for text in ("after SFT", "40.0 %", "33.5 – 46.9 %", "80 of 200", "12.3 s", "torch"):
        assert text in page.text


def test_there_is_one_chart_for_each_metric_family(folder):
    rows = [
        {
            "time": 1.0,
            "phase": "RL",
            "step": step,
            "reward/mean": step / 30,
            "reward/std": 0.1,
            "loss": None,
            "own": step,
        }
        for step in range(30)
    ]
    page = _report(folder, metrics_rows=rows)
    assert page.tags.count("figure") == 2
    assert page.text.index("reward") < page.text.index("own")
    assert page.tags.count("li") == 2


def test_messages_and_settings_cannot_smuggle_in_markup_and_nothing_is_loaded_from_elsewhere(folder):
    messages = [
        {"role": "user", "content": HOSTILE},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": HOSTILE, "arguments": HOSTILE}}]},
        {"role": HOSTILE, "content": [{"type": "text", "text": HOSTILE}]},
    ]
    rows = [{"step": 1, HOSTILE: 1.0, HOSTILE + "/a": 2.0}]
    summary = {"accuracy": [accuracy_row(HOSTILE, 1, 2)], "versions": {HOSTILE: HOSTILE}, "untrained": {HOSTILE: 2}}
    transcripts = [{"title": HOSTILE, "reward": 1, "note": HOSTILE, "messages": messages}]
    page = _report(folder, summary, rows, transcripts)
    assert not {"link", "script", "img", "iframe"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")]
    assert "url(" not in folder.report_path.read_text()
    assert "@import" not in folder.report_path.read_text()
    assert page.text.count(HOSTILE) >= 9


@pytest.mark.parametrize(
    "points",
    [
        [(0, 0.0)],
        [(5, 3.0), (6, 3.0)],
        [(0, -1e-12), (1, 1e-12)],
        [(0, 1e12), (1, -1e12)],
        [(step, math.sin(step)) for step in range(5000)],
        [(0, math.nan), (1, 1.0), (2, math.inf), (3, 2.0)],
    ],
)
def test_a_chart_keeps_its_lines_inside_its_frame(points):
    class Drawing(Page):
        def coordinates(self):
            for name, value in self.attributes:
                if name == "points":
                    yield from (tuple(map(float, pair.split(","))) for pair in value.split())

    drawing = Drawing(line_chart([("a", points)]))
    coordinates = list(drawing.coordinates())
    assert coordinates
    assert all(52 <= x <= 448 and 9.9 <= y <= 192.1 for x, y in coordinates)
    assert len(coordinates) <= 800
    assert line_chart([("a", [(0, math.nan)]), ("b", [])]) == ""


def test_the_axis_of_an_accuracy_that_stays_at_0_has_no_negative_label():
    chart = line_chart([("accuracy", [(0, 0.0), (1, 0.0)])], percent=True)
    assert "0 %" in chart
    assert "-" not in re.sub(r"<[^>]*>", "", chart)
