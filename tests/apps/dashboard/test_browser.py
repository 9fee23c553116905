"""The dashboard in a real browser: every view, by keyboard, on a telephone, live, with a key; hostile texts stay texts.

`make test-dashboard` runs these; without Chromium, or Playwright in its own environment, they are skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hostile import TEXTS
from recorded import add_rollout

from mini_agentic_rl import SqlLightningStore
from mini_agentic_rl.apps.dashboard import run_sources, store_source

ROOT = Path(__file__).resolve().parents[3]
PYTHON = os.environ.get("DASHBOARD_PYTHON", str(ROOT / ".venv-docs/bin/python"))
CHROMIUM = os.environ.get("DASHBOARD_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome") or ""
pytestmark = [
    pytest.mark.skipif(
        not (Path(PYTHON).exists() and CHROMIUM),
        reason="NOT CHECKED: the dashboard in a browser; `make test-dashboard` does, with Chromium on this computer",
    ),
    pytest.mark.timeout(900),
]
VIEWS = ["#/", *(f"#/run/letters/{name}" for name in ("doctor", "rollouts", "groups", "workers", "resources"))]


def start(root, do, **job):
    command = [
        PYTHON,
        str(Path(__file__).with_name("browser.py")),
        CHROMIUM,
        json.dumps({"root": root, "do": do, **job}),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result(process):
    """What was found, in a browser that said nothing on its console and asked nobody else for anything."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    told = json.loads(out.splitlines()[-1])
    assert told["console"] == []
    assert told["foreign"] == []
    return told["found"]


def test_every_view_shows_what_it_is_about(shown):
    rollout = shown.get("letters/rollouts", mode="train", limit=1)["items"][0]["id"]
    group = shown.get("letters/groups")["items"][0]["group"].replace("/", "%2F")
    one = f"#/run/letters/rollout/{rollout}"
    expected = {
        "#/": ["Reward", "Entropy", "Mismatch", "finished"],
        "#/run/letters/rollouts": ["succeeded", "step 2"],
        "#/run/letters/groups": ["step 2, task 1"],
        f"#/run/letters/group?group={group}": ["advantage", "compared with", "tokens in the tree"],
        one: ["Conversation", "user", "assistant", "Rewards"],
        f"{one}?tab=tokens": ["<|im_start|>", "sampled"],
        f"{one}?tab=tokens&color=entropy": ["entropy", "any of many"],
        "#/run/letters/doctor": ["Why is nothing learnt?", "Looked at 2 steps", "Nothing was found by"],
        f"{one}?tab=spans": ["openai.chat.completion"],
        f"{one}?tab=facts": ["Attempts", "Metadata"],
        "#/run/letters/workers": ["runner-0"],
        "#/run/letters/resources": ["version 1"],
        "#/run/nothing/rollouts": ["There is no run nothing"],
    }
    found = result(start(shown.root, "views", addresses=list(expected)))
    missing = {address: [part for part in parts if part not in found[address]] for address, parts in expected.items()}
    assert missing == {address: [] for address in expected}


def test_hostile_transcripts_are_shown_as_text_and_the_page_lives(shown):
    rows = shown.get("hostile/rollouts", limit=200)["items"][::-1]
    rollouts = {name: row["id"] for name, row in zip(TEXTS, rows, strict=True)}
    found = result(start(shown.root, "hostile", rollouts=rollouts))
    assert found.pop("hacked") is None
    for name, told in found.items():
        assert (told["hacked"], told["foreign"], told["alive"]) == (None, 0, 6), name
        assert told["conversation"] > 0, name
    assert found["script"]["text"] == TEXTS["script"]
    assert found["closes everything"]["text"] == TEXTS["closes everything"]
    assert found["right to left"]["text"] == r"invoice\u202egnp.exe \u2067hidden\u2069 \u200f\u061c"


def test_a_rollout_is_reached_by_keyboard_and_its_tokens_tell_all(shown):
    found = result(start(shown.root, "keyboard"))
    assert "tab=tokens" in found["address"]
    for part in ("log-probability", "policy version", "loss mask", "entropy", "gap to the learner"):
        assert part in found["told"]


def test_no_view_breaks_a_rule_of_accessibility_in_either_colour(shown):
    rollout = shown.get("letters/rollouts", mode="train", limit=1)["items"][0]["id"]
    group = shown.get("letters/groups")["items"][0]["group"].replace("/", "%2F")
    one = f"#/run/letters/rollout/{rollout}"
    tabs = [one, *(f"{one}?tab={tab}" for tab in ("tokens", "tokens&color=entropy", "tokens&color=mask", "spans"))]
    addresses = [*VIEWS, f"#/run/letters/group?group={group}", *tabs, f"{one}?tab=facts", "#/run/hostile/rollouts"]
    assert result(start(shown.root, "accessible", addresses=addresses)) == {}


def test_views_fit_a_telephone_in_both_colours(shown):
    found = result(start(shown.root, "telephone", addresses=VIEWS))
    assert found.pop("theme") == "dark"
    assert {address: wider for address, wider in found.items() if wider > 0} == {}


def test_a_new_rollout_appears_by_itself(tmp_path, serve):
    store = SqlLightningStore(tmp_path / "rollouts.db")
    asked = {"messages": [{"role": "user", "content": "q"}], "reply": {"role": "assistant", "content": "a"}}
    asyncio.run(add_rollout(store, input="first", reward=1, **asked))
    process = start(serve(store_source(store)).root, "live", address="#/run/store/rollouts")
    assert process.stdout.readline().strip() == "looking"
    asyncio.run(add_rollout(store, input="second", reward=1, **asked))
    assert result(process) == [1, 2]
    asyncio.run(store.close())


def test_the_first_paint_and_a_scroll_are_measured(shown):
    found = result(start(shown.root, "paint", address="#/run/letters/rollouts", scrolls=2))
    assert found["lines in the page"] > 0
    assert all(found[f"{name} ms"] > 0 for name in ("first paint", "list", "median frame", "slowest frame"))


def test_a_key_is_asked_for_in_the_page(run_folder, serve):
    process = start(serve(*run_sources([run_folder]), api_keys=["secret"]).root, "key", key="secret")
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    told = json.loads(out.splitlines()[-1])
    assert "letters" in told["found"]
    assert all("401" in line for line in told["console"])  # the browser tells of a refusal by itself
