"""Pictures of the dashboard, for docs/doctor.md: `dashboard.py MINI_AGENTIC_RL RUN [RUN...]`.

Needs Playwright; `make dashboard-pictures` has an environment for it. The browser is that of DASHBOARD_CHROMIUM.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

from playwright.sync_api import sync_playwright

HERE = Path(__file__).parent
PORT = 8093


def main() -> None:
    """Start a dashboard over the runs, and take the pictures."""
    program, *runs = sys.argv[1:]
    server = subprocess.Popen([program, "dashboard", *runs, "--port", str(PORT)], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        server.stdout.readline()
        root = f"http://127.0.0.1:{PORT}"
        name = quote(Path(runs[0]).name)
        groups: list = []
        while not groups:  # until they are read
            time.sleep(0.5)
            groups = _asked(f"{root}/dashboard/api/runs/{name}/groups?limit=200")["items"]
        best = max(groups, key=lambda one: len(set(one["rewards"])))
        group = _asked(f"{root}/dashboard/api/runs/{name}/groups/view?group={quote(best['group'], safe='')}")
        rollout = group["rollouts"][0]["id"]
        pictures = {
            "runs": "#/",
            "group": f"#/run/{name}/group?group={quote(best['group'], safe='')}",
            "tokens": f"#/run/{name}/rollout/{rollout}?tab=tokens",
        }
        with sync_playwright() as playwright:
            chromium = os.environ.get("DASHBOARD_CHROMIUM") or None
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1100, "height": 760})
            for picture, address in pictures.items():
                page.goto("about:blank")
                page.goto(f"{root}/{address}")
                page.wait_for_selector("main h1")
                page.wait_for_timeout(2000)
                page.screenshot(path=HERE / f"dashboard-{picture}.png")
            browser.close()
    finally:
        server.terminate()
        server.wait(30)


def _asked(address: str) -> dict:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)


if __name__ == "__main__":
    main()
