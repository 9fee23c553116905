"""Start a script on several ranks, with the variables that torchrun sets, and none of its seconds."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors.torch import load_file

from processes import PythonProcess


@contextlib.contextmanager
def ranks(
    count: int, script: str | Path, *options: str, environment: Mapping[str, str] | None = None
) -> Iterator[list[PythonProcess]]:
    """Start `python script options...` on so many ranks; those that still run at the end are killed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        **(environment or {}),
    }
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                PythonProcess(script, *options, environment={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            )
            for rank in range(count)
        ]


def run_on_ranks(count: int, script: str | Path, *options: str) -> list[tuple[str, str]]:
    """Run a script on so many ranks; return what each wrote to standard output and error."""
    with ranks(count, script, *options) as started:
        for rank, process in enumerate(started):
            status = process.wait()
            errors = "\n".join(f"rank {number}: {each.stderr[-3000:]}" for number, each in enumerate(started))
            assert status == 0, f"rank {rank} ended with {status}\n{errors}"
        return [(process.stdout, process.stderr) for process in started]


def adapter_difference(one: Path, other: Path) -> float:
    """Return the largest difference of a weight between the adapters of two runs, which have learned something."""
    first, second = (load_file(folder / "adapter" / "adapter_model.safetensors") for folder in (one, other))
    assert first.keys() == second.keys()
    assert max(tensor.abs().max() for name, tensor in first.items() if "lora_B" in name) > 1e-4
    return max(float((tensor - second[name]).abs().max()) for name, tensor in first.items())
