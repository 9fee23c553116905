"""How much a newcomer has to read: sizes and boundaries of the package, of one checkout or of two side by side.

    git worktree add ../before 68b3c28
    python benchmarks/structure.py ../before .

Sizes are counted in the source as text. With `--trace` a tiny model takes one training step and answers one chat
request in each checkout, and the functions of the package are counted:

    step       functions on the call stack at `loss.backward()`, from the command line on: the frames of the main thread
               and of the torch thread, and the coroutines that are suspended between them
    request    functions that are called between a chat request and its answer, with recording in a store

A forwarder is a function whose whole body is one call.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rich.console import Console
from rich.table import Table

from output import deliver, make_parser

PACKAGE = "mini_agentic_rl"


class Checkout:
    """The modules of one checkout, parsed."""

    def __init__(self, root: Path) -> None:
        self.root = root / "src" / PACKAGE
        if not self.root.is_dir():
            raise SystemExit(f"{root} is no checkout: it has no src/{PACKAGE}")
        paths = sorted([*self.root.rglob("*.py"), *self.root.rglob("*.pyi")])
        self.lines = {path: path.read_text(encoding="utf-8").count("\n") for path in paths}
        self.trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}

    def room(self, path: Path) -> str:
        """Return the name of the package directly below the root, or of the module."""
        return path.relative_to(self.root).parts[0].removesuffix(".py")

    def rooms(self) -> dict[str, dict[str, int]]:
        """Return the number of files and lines of each room."""
        files: Counter[str] = Counter(self.room(path) for path in self.lines)
        lines: Counter[str] = Counter()
        for path, count in self.lines.items():
            lines[self.room(path)] += count
        return {room: {"files": files[room], "lines": lines[room]} for room in sorted(files)}

    def measures(self) -> dict[str, int]:
        """Return every measure by its name."""
        functions = [node for tree in self.trees.values() for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
        return {
            "files": len(self.lines),
            "lines": sum(self.lines.values()),
            "functions": len(functions),
            "forwarders": sum(is_forwarder(node) for node in functions),
            "imports past the public names of another room": sum(1 for _ in self._past_public_names()),
        }

    def _past_public_names(self) -> Iterator[tuple[Path, str]]:
        """Yield imports of a module inside another room; packages inside a room have public names of their own."""
        for path, tree in self.trees.items():
            package = [PACKAGE, *path.relative_to(self.root).parts[:-1]]
            for node in ast.walk(tree):
                if not isinstance(node, ast.ImportFrom):
                    continue
                start = package[: len(package) - node.level + 1] if node.level else []
                parts = [*start, *(node.module.split(".") if node.module else [])]
                if len(parts) > 2 and parts[0] == PACKAGE and parts[1] != self.room(path):
                    target = self.root.joinpath(*parts[1:])
                    if not target.is_dir():
                        yield path, ".".join(parts)


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def is_forwarder(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True if the body of a function, without its docstring, is one call."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    value = body[0].value
    return isinstance(value.value if isinstance(value, ast.Await) else value, ast.Call)


def described(codes: Iterable[CodeType]) -> dict[str, Any]:
    """Return the functions of the package among some code objects, in order: their number, files and forwarders."""
    root = Path(sys.modules[PACKAGE].__file__ or "").parent
    unique = {code: None for code in codes if str(root) in code.co_filename and not code.co_name.startswith("<")}
    nodes: dict[tuple[str, int], Any] = {}
    for file in {code.co_filename for code in unique}:
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
            if isinstance(node, FUNCTIONS):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                nodes[file, first] = node
    functions = []
    for code in unique:
        node = nodes.get((code.co_filename, code.co_firstlineno))
        name = f"{Path(code.co_filename).relative_to(root)}: {getattr(code, 'co_qualname', code.co_name)}"
        functions.append((name, node is not None and is_forwarder(node)))
    return {
        "functions": len(functions),
        "files": len({code.co_filename for code in unique}),
        "forwarders": sum(forwards for _, forwards in functions),
        "names": [f"{name} (forwards)" if forwards else name for name, forwards in functions],
    }


def coroutine_codes(coroutine: Any) -> Iterator[CodeType]:
    """Yield the code of a suspended coroutine, and of each one that it awaits."""
    while coroutine is not None and hasattr(coroutine, "cr_code"):
        yield coroutine.cr_code
        coroutine = coroutine.cr_await


def thread_codes(frame: FrameType | None) -> Iterator[CodeType]:
    """Yield the code of the frames of a thread, the outermost first; after a running event loop that of its suspended
    tasks which belong to the algorithm."""
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    rooms = tuple(f"{PACKAGE}{os.sep}{room}{os.sep}" for room in ("trainer", "algorithm"))
    for frame in reversed(frames):
        yield frame.f_code
        if frame.f_code.co_name == "run_forever":
            chains = [list(coroutine_codes(task.get_coro())) for task in asyncio.all_tasks(frame.f_locals["self"])]
            # The chain that a task begins stands before the chain of the task that it waits for.
            for chain in sorted(chains, key=lambda chain: chain[0].co_name != "__call__"):
                if any(room in code.co_filename for code in chain for room in rooms):
                    yield from chain


def trace_step(model: Path, folder: Path) -> dict[str, Any]:
    """Return the functions on the call stack at the first `loss.backward()` of a training."""
    import torch

    from mini_agentic_rl.cli import app

    stacks: list[list[CodeType]] = []
    backward, main_thread = torch.autograd.backward, threading.main_thread().ident

    def watched(*arguments: Any, **options: Any) -> None:
        if not stacks:
            frames = sys._current_frames()
            stacks.append([*thread_codes(frames[main_thread or 0]), *thread_codes(sys._getframe(1))])
        backward(*arguments, **options)

    torch.autograd.backward = watched
    # Under an entropy bonus every rollout has a gradient: a tiny model earns no reward.
    sizes = (
        "--total-steps 1 --tasks-per-step 2 --samples-per-prompt 2 --max-new-tokens 4 --eval-size 1 --sft-examples 0"
    )
    sys.argv = [
        PACKAGE,
        "train",
        "--model",
        str(model),
        "--output-dir",
        str(folder),
        "--n-runners",
        "4",
        "--no-console",
    ]
    sys.argv += ["--algorithm", "reinforce++", "--entropy-coef", "0.01", *sizes.split()]
    try:
        app()
    except SystemExit as ended:
        if ended.code:
            raise
    return described(stacks[0])


def trace_request(model: Path) -> dict[str, Any]:
    """Return the functions that are called between a chat request and its answer."""
    import httpx

    from mini_agentic_rl import InMemoryLightningStore
    from mini_agentic_rl.gateway import ServedPolicy

    called: dict[CodeType, None] = {}
    is_traced = False

    def on_event(frame: FrameType, event: str, _: Any) -> None:
        if is_traced and event == "call":
            called.setdefault(frame.f_code)

    threading.setprofile(on_event)  # for the threads of the server
    store = InMemoryLightningStore()
    rollout = asyncio.run(store.start_rollout("task"))
    served = ServedPolicy.load(str(model))
    try:
        served.serve(store=store)
        llm = served.resources({}, {})["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        body = {"model": llm.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        headers = {"Authorization": f"Bearer {llm.api_key}"}
        for traced_ones in ((), called):  # the first request imports modules and fills caches
            is_traced = traced_ones is called
            httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=60).raise_for_status()
    finally:
        is_traced = False
        threading.setprofile(None)  # type: ignore[arg-type]
        served.close()
    before = [code for code in called if not any(f"{os.sep}{room}{os.sep}" in code.co_filename for room in BEHIND)]
    return {"whole": described(called), "before engine and store": described(before)}


BEHIND = ("policy", "store", "samplers")
"""Rooms behind the gateway."""


def trace() -> dict[str, Any]:
    """Trace the package on the import path, beside the `tests` of its checkout."""
    sys.path.remove(str(Path(__file__).parent))  # a benchmark has the name of a package of the tests
    from tiny import tiny_model, tiny_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        tokenizer = tiny_tokenizer()
        tokenizer.save_pretrained(model)
        tiny_model(len(tokenizer)).save_pretrained(model)
        request = trace_request(model)
        return {"step": trace_step(model, Path(folder) / "run"), **{f"request, {k}": v for k, v in request.items()}}


def traced(root: Path) -> dict[str, Any]:
    """Return the result of `trace` in a process whose import path is that of a checkout."""
    path = os.pathsep.join(str((root / part).resolve()) for part in ("src", "tests"))
    command = [sys.executable, __file__, "--trace-here"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the trace of {root} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def report(console: Console, result: Any) -> None:
    """Print a table of measures and one of rooms, with a column for each checkout, and the functions of the traces."""
    measures = Table("measure", *result)
    for name in next(iter(result.values()))["measures"]:
        measures.add_row(name, *(f"{found['measures'][name]:,}" for found in result.values()))
    for name in next(iter(result.values()))["traces"]:
        for count in ("functions", "files", "forwarders"):
            measures.add_row(f"{name}: {count}", *(str(found["traces"][name][count]) for found in result.values()))
    console.print(measures)
    rooms = Table("room", *result)
    for room in sorted(set().union(*(found["rooms"] for found in result.values()))):
        rooms.add_row(room, *(_size(found["rooms"].get(room)) for found in result.values()))
    console.print(rooms)
    for root, found in result.items():
        if "step" in found["traces"]:
            console.print(f"{root}: from the command to loss.backward()")
            console.print("\n".join(f"  {name}" for name in found["traces"]["step"]["names"]))


def _size(room: dict[str, int] | None) -> str:
    return "" if room is None else f"{room['files']} files, {room['lines']:,} lines"


def main() -> None:
    """Read the command line and print."""
    parser = make_parser(__doc__)
    parser.add_argument("roots", nargs="*", type=Path, default=[Path()], help="folders of checkouts; by default this")
    parser.add_argument("--trace", action="store_true", help="trace a training step and a chat request as well")
    parser.add_argument("--trace-here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace_here:
        print(json.dumps(trace()))
        return
    checkouts = {str(root): Checkout(root) for root in options.roots}
    result = {
        name: {
            "measures": found.measures(),
            "rooms": found.rooms(),
            "traces": traced(Path(name)) if options.trace else {},
        }
        for name, found in checkouts.items()
    }
    deliver(options, result, report)


if __name__ == "__main__":
    main()
