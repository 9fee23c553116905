"""Check and measure everything that needs a GPU, in under half an hour on one card, as a table for RESULTS.md.

python benchmarks/gpu.py --output gpu.json                          # on the first CUDA device
python benchmarks/gpu.py --minutes 7 --output gpu.json              # the most telling parts, in at most 7 minutes
python benchmarks/gpu.py --vllm-python other-env/bin/python         # and vLLM's server as another side
python benchmarks/gpu.py --device cpu --shapes toy                  # that the script itself works

Models are Qwen2.5's shapes with random weights, so that no hub is needed; what they say means nothing, what they cost
does. Each part runs in processes of its own, and one that fails or takes too long is a line of the table.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mini_agentic_rl.commands import PlanSettings, plan_job
from mini_agentic_rl.policy import resolve_device
from output import deliver, make_parser, tell
from random_model import SHAPES, make_model

HERE = Path(__file__).parent
CARD_BYTES = 4 * 10**9
"""Memory of the small card that the 4gb rows are held to."""


SHORTEST_PART_S = 5
"""A part is not begun with less time than this."""


@dataclass(frozen=True)
class Part:
    """One run of a script that prints JSON, and what it is called in the table."""

    title: str
    command: Sequence[str]
    limit_s: float
    needs: str | None = None
    """Package without which the part is left out."""


@dataclass(frozen=True)
class Sizes:
    """How much is sampled; a CPU gets little, since there only the script is tried."""

    tasks: int
    samples: int
    prompt_tokens: int
    new_tokens: int
    requests: int

    def step(self) -> list[str]:
        """Return the options of a GRPO step of these sizes."""
        return [
            *("--tasks", str(self.tasks), "--samples", str(self.samples)),
            *("--prompt-tokens", str(self.prompt_tokens), "--new-tokens", str(self.new_tokens)),
        ]


FULL = Sizes(tasks=8, samples=16, prompt_tokens=512, new_tokens=256, requests=128)
TOY = Sizes(tasks=2, samples=2, prompt_tokens=420, new_tokens=4, requests=3)


def parts(device: str, models: dict[str, str], sizes: Sizes, vllm_url: str | None) -> Iterator[Part]:
    """Yield what is run, the most telling parts first: those at the end are what a short time leaves out."""
    here = ["--device", device]
    smallest = next(iter(models))
    for shape, model in models.items():
        for dtype in ("float32", "bfloat16"):
            script = ["exactness.py", "--model", model, *here, "--dtype", dtype]
            yield Part(f"exactness, {shape}, {dtype}", script, 300)
        if shape == smallest:
            for quantization in ("4bit", "8bit"):
                script = ["exactness.py", "--model", model, *here, "--dtype", "bfloat16"]
                script += ["--quantization", quantization, "--optimizer", "adamw_8bit"]
                yield Part(f"exactness, {shape}, {quantization}", script, 300, needs="bitsandbytes")
        for dtype in ("float32", "bfloat16") if shape == smallest else ("bfloat16",):
            script = ["fast_paths.py", "--model", model, *here, "--dtype", dtype, *sizes.step()]
            yield Part(f"graphs and FlexAttention, {shape}, {dtype}", script, 300)
        common = ["--model", model, *here, "--dtype", "bfloat16"]
        yield Part(f"step, {shape}", ["grpo_step.py", *common, *sizes.step(), "--json"], 600)
        peers = ["--peers", "padded", "continuous"] if sizes is FULL else ["--peers"]
        url = ["--url", vllm_url, "--url-model", shape] if vllm_url and shape == smallest else []
        asked = ["--requests", str(sizes.requests), "--new-tokens", str(sizes.new_tokens)]
        asked += ["--system-tokens", "200"]  # of about five bytes, each a token here
        yield Part(f"sampling, {shape}", ["sampling.py", *common, *asked, *peers, *url, "--json"], 600)
        one = Sizes(1, sizes.samples, sizes.prompt_tokens, sizes.new_tokens, 1)
        yield Part(f"4 GB card, {shape}", _small_card(model, device, one), 600)
    memory = ["memory.py", "--model", models[smallest], *here, "--dtype", "bfloat16", *sizes.step(), "--json"]
    yield Part(f"planner, {smallest}", memory, 600)
    yield Part("invariants", [sys.executable, "-m", "pytest", "-n", "0", "tests/invariant"], 600, needs="pytest")


def _small_card(model: str, device: str, sizes: Sizes) -> list[str]:
    """Return the step that the planner fits into a card of 4 GB, held to that memory."""
    plan = plan_job(
        PlanSettings().changed(
            model=model,
            vram=str(CARD_BYTES),
            device=device,
            samples_per_prompt=sizes.samples,
            tasks_per_step=sizes.tasks,
            prompt_tokens=sizes.prompt_tokens,
            max_new_tokens=sizes.new_tokens,
        )
    )
    words = plan["options"].split()
    chosen = dict(pairwise(words))
    quantizes = importlib.util.find_spec("bitsandbytes") is not None and device != "cpu"
    return [
        *("grpo_step_ours.py", "--model", model, "--device", device, "--dtype", "bfloat16", *sizes.step()),
        *("--max-batch-tokens", chosen["--max-batch-tokens"], "--cache-mib", chosen["--cache-mib"]),
        *("--quantization", chosen["--quantization"] if quantizes else "none"),
        *(["--checkpointing"] if "--gradient-checkpointing" in words else []),
        *(["--no-cuda-graphs"] if "--no-cuda-graphs" in words else []),
        *("--device-bytes", str(CARD_BYTES)),
    ]


def run_part(part: Part, device: str, seconds_left: float) -> dict[str, Any]:
    """Run one part for at most `seconds_left`; return its rows, or why there are none."""
    limit = min(part.limit_s, seconds_left)
    if limit < SHORTEST_PART_S:
        return {"part": part.title, "failed": "not run: no time was left", "seconds": 0.0, "rows": []}
    if part.needs is not None and importlib.util.find_spec(part.needs) is None:
        return {"part": part.title, "failed": f"not run: {part.needs} is not installed", "seconds": 0.0, "rows": []}
    script = part.command[0]
    command = (
        list(part.command) if script == sys.executable else [sys.executable, str(HERE / script), *part.command[1:]]
    )
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit,
            cwd=HERE.parent,
            env={**os.environ, "TEST_DEVICE": device},
        )
    except subprocess.TimeoutExpired:
        return {"part": part.title, "failed": f"ended after {limit:.0f} s", "seconds": limit, "rows": []}
    seconds = time.monotonic() - began
    if script == sys.executable:
        last = done.stdout.strip().splitlines()[-1:] or [""]
        passed = {"check": "tests/invariant", "result": last[0]}
        return _result(part, seconds, done, [passed])
    try:
        found = json.loads(done.stdout if "--json" in command else done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return _result(part, seconds, done, [])
    rows = found if isinstance(found, list) else found.get("rows", [found])
    return _result(part, seconds, done, rows)


def _result(part: Part, seconds: float, done: subprocess.CompletedProcess[str], rows: list[Any]) -> dict[str, Any]:
    failed = None
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    if done.returncode:
        failed = lines[-1] if lines else f"exit code {done.returncode}"
    output = lines[-40:] if failed else []
    return {"part": part.title, "failed": failed, "seconds": seconds, "rows": rows, "output": output}


@contextmanager
def vllm_server(python: str | None, model: str, name: str) -> Iterator[str | None]:
    """Serve `model` by vLLM while inside, and yield its address; None without `python`, or if it does not start."""
    if python is None:
        yield None
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", name]
    command += [
        "--port",
        str(port),
        "--dtype",
        "bfloat16",
        "--max-model-len",
        "4096",
        "--gpu-memory-utilization",
        "0.3",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/v1" if _answers(f"http://127.0.0.1:{port}/health", process) else None
    finally:
        process.terminate()
        process.wait()


def _answers(url: str, process: subprocess.Popen[bytes], limit_s: float = 300) -> bool:
    end = time.monotonic() + limit_s
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            time.sleep(2)
    tell("vLLM's server did not start: it is left out")
    return False


def describe(device: str) -> dict[str, str]:
    """Return what was measured on."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.processor() or "CPU"
    found = {"device": name, "torch": torch.__version__, "python": platform.python_version()}
    for package in ("transformers", "bitsandbytes", "trl", "vllm"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def report(console: Console, result: dict[str, Any]) -> None:
    """Print Markdown tables: one row a part that has figures, and one line for each that has none."""
    console.print(", ".join(f"{name} {value}" for name, value in result["machine"].items()), highlight=False)
    for part in result["parts"]:
        console.print(f"\n**{part['part']}** ({part['seconds']:.0f} s)\n", highlight=False)
        if part["failed"]:
            console.print(f"failed: {part['failed']}", highlight=False, markup=False)
        if part["rows"]:
            names = [name for name in part["rows"][0] if name != "work"]
            lines = [names, ["---"] * len(names), *([_cell(row.get(name)) for name in names] for row in part["rows"])]
            for line in lines:
                console.print(f"| {' | '.join(line)} |", highlight=False, markup=False, soft_wrap=True)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="auto", help="cuda, cuda:1, cpu, or auto")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=None, help="models; a CPU gets `toy`")
    parser.add_argument("--only", nargs="+", default=[""], help="run the parts whose titles begin so")
    parser.add_argument("--minutes", type=float, default=30, help="time for all parts; what does not fit is left out")
    parser.add_argument("--vllm-python", default=None, help="Python of an environment with vLLM")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    device = str(resolve_device(options.device))
    on_card = device.startswith("cuda")
    shapes: list[str] = options.shapes or (["0.5B", "1.5B"] if on_card else ["toy"])
    sizes = FULL if on_card else TOY
    found = []
    with tempfile.TemporaryDirectory() as folder:
        models = {shape: make_model(shape, Path(folder) / shape) for shape in shapes}
        wanted = options.vllm_python if any("sampling".startswith(one[:8]) for one in options.only) else None
        with vllm_server(wanted, models[shapes[0]], shapes[0]) as url:
            for part in parts(device, models, sizes, url):
                if part.title.startswith(tuple(options.only)):
                    found.append(run_part(part, device, end - time.monotonic()))
                    tell(f"{part.title}: {found[-1]['failed'] or 'done'}, {found[-1]['seconds']:.0f} s")
    deliver(options, {"machine": describe(device), "parts": found}, report)
    broken = [part for part in found if part["failed"] and not part["failed"].startswith("not run")]
    if broken or not all(row.get("holds", True) for part in found for row in part["rows"]):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
