"""notebooks/: each runs from its first cell to its last at the size of a test, in an event loop as in Jupyter."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import json
import re
from pathlib import Path

import pytest

from pages.snippets import ROOT

NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))
SMALLER = {
    r"total_steps=\d+": "total_steps=1",
    r"tasks_per_step=\d+": "tasks_per_step=1",
    r"max_new_tokens=\d+": "max_new_tokens=4, samples_per_prompt=2",
    r"examples=\d+": "examples=2",
    r"eval_size=\d+": "eval_size=2",
    r"n_runners=\d+": "n_runners=4",
    r'mails\("toaster", [^)]*\)': 'mails("toaster")[:2]',
}


def read(name: str) -> dict:
    return json.loads((ROOT / "notebooks" / name).read_text(encoding="utf-8"))


def smaller(source: str) -> str:
    """Return a cell whose sizes are those of a test."""
    for pattern, size in SMALLER.items():
        source = re.sub(pattern, size, source)
    return source


def code_cells(name: str) -> list[str]:
    return ["".join(cell["source"]) for cell in read(name)["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("name", NOTEBOOKS)
async def test_the_cells_of_a_notebook_run_inside_of_an_event_loop(name, here):
    names: dict = {"__name__": "__main__"}
    with contextlib.redirect_stdout(io.StringIO()) as told:
        for source in code_cells(name):
            compiled = compile(smaller(source), name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(compiled, names)
            if inspect.iscoroutine(result):
                await result
    rows = names["summary"]["accuracy"]
    assert [row["name"] for row in rows][:: len(rows) - 1] == ["before", "after RL"]
    assert [row["count"] for row in rows] == [2] * len(rows)
    assert "after RL:" in told.getvalue()
    assert names["trainer"].folder is not None


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_in_a_kernel(name, here: Path):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed: `make test-notebooks` runs kernels")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed: `make test-notebooks` runs kernels")
    notebook = nbformat.from_dict(read(name))
    for cell in notebook.cells:
        cell.source = smaller("".join(cell.source))
    done = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(here)}}
    ).execute()
    told = "".join(output.get("text", "") for cell in done.cells for output in cell.get("outputs", []))
    assert "after RL:" in told
