"""What a person does with the dashboard, done in Chromium by Playwright; run in an environment that has it.

`browser.py CHROMIUM JOB`: JOB is JSON with `root`, the address of a server, and `do`, one of the functions below. What
it found is printed as JSON, with everything that the browser's console said.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

LOADED = "() => !document.querySelector('.loading') && document.querySelector('main h1, main [role=alert]')"


def views(page: Page, job: dict[str, Any]) -> Any:
    """Open addresses; return the text of each."""
    found = {}
    for address in job["addresses"]:
        show(page, job["root"], address)
        found[address] = page.inner_text("main")[:2000]
    return found


def hostile(page: Page, job: dict[str, Any]) -> Any:
    """Open every tab of rollouts; return what each transcript has done, which should be nothing but to be shown."""
    found = {}
    for name, rollout in job["rollouts"].items():
        told = {}
        for tab in ("conversation", "tokens", "spans", "facts"):
            show(page, job["root"], f"#/run/hostile/rollout/{rollout}?tab={tab}")
            if tab == "spans":
                page.locator(".waterfall summary").first.click()
            page.mouse.move(400, 400)
            told[tab] = len(page.inner_text("#panel"))
        show(page, job["root"], f"#/run/hostile/rollout/{rollout}")
        told["text"] = page.inner_text(".message .text")[:200]
        told["hacked"] = page.evaluate("window.hacked")
        told["foreign"] = page.locator("main script, main iframe, main img, main form, main base, main style").count()
        told["alive"] = page.locator("header nav a").count()
        found[name] = told
    show(page, job["root"], "#/run/hostile/rollouts")
    show(page, job["root"], "#/run/hostile/group?group=0%2F0")
    found["hacked"] = page.evaluate("window.hacked")
    return found


def keyboard(page: Page, job: dict[str, Any]) -> Any:
    """Walk from the runs to a rollout's tokens without a mouse."""
    show(page, job["root"], "#/")
    page.keyboard.press("r")
    page.wait_for_selector(".row")
    page.focus(".list")
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    page.wait_for_selector("[role=tab]")
    page.focus("[role=tab][aria-selected=true]")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".tokens")
    page.focus(".tokens")
    for _ in range(21):
        page.keyboard.press("ArrowRight")
    return {"address": page.evaluate("location.hash"), "told": page.inner_text(".sticky")}


def telephone(page: Page, job: dict[str, Any]) -> Any:
    """Return how far each view is wider than a telephone, in both colours."""
    page.set_viewport_size({"width": 375, "height": 740})
    found = {}
    for address in job["addresses"]:
        show(page, job["root"], address)
        found[address] = page.evaluate("document.scrollingElement.scrollWidth - innerWidth")
    page.click(".theme")
    found["theme"] = page.evaluate("document.documentElement.dataset.theme")
    return found


def accessible(page: Page, job: dict[str, Any]) -> Any:
    """Return what axe, whose rules Lighthouse takes its figure of, finds against each view in either colour."""
    found = {}
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        for address in job["addresses"]:
            show(page, job["root"], address)
            broken = Axe().run(page, options={"rules": {"target-size": {"enabled": True}}}).response["violations"]
            told = {rule["id"]: [node["html"][:200] for node in rule["nodes"][:3]] for rule in broken}
            if told:
                found[f"{theme} {address}"] = told
    return found


def live(page: Page, job: dict[str, Any]) -> Any:
    """Look at the rollouts until one comes that was not there."""
    show(page, job["root"], job["address"])
    page.wait_for_selector(".row")
    page.wait_for_selector(".live.on")
    before = page.locator(".row").count()
    print("looking", flush=True)
    page.wait_for_function("n => document.querySelectorAll('.row').length > n", arg=before, timeout=60_000)
    return [before, page.locator(".row").count()]


def key(page: Page, job: dict[str, Any]) -> Any:
    """Give a wrong key and the right one."""
    page.goto(f"{job['root']}/")
    page.wait_for_selector("input[type=password]")
    page.fill("input[type=password]", "wrong")
    page.click("button[type=submit]")
    page.wait_for_selector("input[type=password]")
    page.fill("input[type=password]", job["key"])
    page.click("button[type=submit]")
    page.wait_for_selector("main table")
    return page.inner_text("main table")


def paint(page: Page, job: dict[str, Any]) -> Any:
    """Return the milliseconds to the first contentful paint, and to the list with lines in it; and of a long scroll.

    `benchmarks/dashboard.py` prints them.
    """
    page.goto("about:blank")
    started = time.perf_counter()
    page.goto(f"{job['root']}/{job['address']}")
    page.wait_for_selector(".row")
    listed = 1000 * (time.perf_counter() - started)
    first = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    page.evaluate(
        """() => { window.slow = []; let last = performance.now();
        const tick = () => {
            const now = performance.now(); slow.push(now - last); last = now; requestAnimationFrame(tick);
        };
        requestAnimationFrame(tick) }"""
    )
    for _ in range(job.get("scrolls", 60)):
        page.evaluate("document.querySelector('.list').scrollBy(0, 900)")
        page.wait_for_timeout(50)
    frames = sorted(page.evaluate("slow"))
    return {
        "first paint ms": first,
        "list ms": listed,
        "lines in the page": page.locator(".row").count(),
        "median frame ms": frames[len(frames) // 2],
        "slowest frame ms": frames[-1],
    }


def show(page: Page, root: str, address: str) -> None:
    """Open an address in a fresh document, and wait until it is shown."""
    page.goto("about:blank")
    page.goto(f"{root}/{address}")
    page.wait_for_function(LOADED, timeout=60_000)
    page.wait_for_timeout(150)


DO: dict[str, Callable[[Page, dict[str, Any]], Any]] = {
    one.__name__: one for one in (views, hostile, keyboard, telephone, accessible, live, key, paint)
}


def main() -> None:
    """Do one job."""
    chromium, text = sys.argv[1:]
    job = json.loads(text)
    said: list[str] = []
    with sync_playwright() as playwright:
        browser: Browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 860})
        page.set_default_timeout(60_000)
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        found = DO[job["do"]](page, job)
        browser.close()
    foreign = [url for url in asked if not url.startswith((job["root"], "about:"))]
    print(json.dumps({"found": found, "console": said, "foreign": foreign}), flush=True)


if __name__ == "__main__":
    main()
