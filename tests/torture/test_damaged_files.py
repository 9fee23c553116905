"""Files that are damaged in every way: each is read, or refused in one line that names it; no weight is ever NaN."""

from __future__ import annotations

import csv
import gzip
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mini_agentic_rl.algorithm.checkpoint import read_progress
from mini_agentic_rl.datasets import load_examples
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.metrics import read_metrics
from mini_agentic_rl.policy import Learner, LearnerSettings, LoraSettings, load_model
from mini_agentic_rl.policy.load import save_weights
from mini_agentic_rl.trainer import RunFolder
from tiny import tiny_model

from .conftest import Attack

ROWS = [
    {"messages": [{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": str(n + 1)}]}
    for n in range(40)
]


def _damage(path: Path, rng: random.Random) -> str:
    """Damage a file, and say how."""
    data = bytearray(path.read_bytes())
    how = rng.choice(["cut", "empty", "flip", "head", "zeros", "noise", "insert", "tail", "other", "deep"])
    at = rng.randrange(len(data))
    if how == "cut":
        del data[at:]
    elif how == "empty":
        data.clear()
    elif how == "flip":
        for _ in range(rng.randrange(1, 9)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    elif how == "head":
        data[rng.randrange(min(200, len(data)))] = rng.randrange(256)
    elif how == "zeros":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    elif how == "noise":
        data[at : at + 64] = rng.randbytes(len(data[at : at + 64]))
    elif how == "insert":
        data[at:at] = rng.randbytes(32)
    elif how == "tail":
        data += rng.randbytes(100)
    elif how == "other":
        data[:] = rng.choice(
            [b"null", b"[]", b"{}", b"3", b'"text"', b"\xff\xfe\x00", b'{"r": "x"}', b'{"peft_type": 3}']
        )
    else:
        data[:] = b"[" * 100_000
    path.write_bytes(data)
    return how


def _read_or_named(read: Callable[[], object], *names: str) -> None:
    """Read; whatever is wrong has to be one line that holds one of the names."""
    told = None
    try:
        read()
    except UserError as error:
        told = str(error)
    assert told is None or ("\n" not in told and any(name in told for name in names)), told


def _poison(file: Path, rng: random.Random) -> None:
    tensors = load_file(str(file))
    tensor = tensors[rng.choice(sorted(tensors))]
    tensor.view(-1)[rng.randrange(tensor.numel())] = rng.choice([float("nan"), float("inf"), -float("inf")])
    save_file(tensors, str(file), {"format": "pt"})


def test_a_damaged_adapter_is_loaded(attack: Attack, tmp_path: Path) -> None:
    save_weights(load_model(tiny_model(), lora=LoraSettings(r=2)), tmp_path / "good")
    rng = random.Random(0)
    for number in range(attack.times(200)):
        folder = tmp_path / "bad"
        shutil.copytree(tmp_path / "good", folder)
        file = folder / rng.choice(["adapter_config.json", "adapter_model.safetensors"])
        with attack.attempt((number, file.name)):
            poisoned = number % 5 == 0
            if poisoned:
                _poison(folder / "adapter_model.safetensors", rng)
            else:
                _damage(file, rng)

            def read(folder: Path = folder) -> None:
                model = load_model(tiny_model(), adapter=folder)
                assert all(torch.isfinite(matrix).all() for matrix in model.trainable())

            if poisoned:
                with pytest.raises(UserError, match="not finite"):
                    read()
            _read_or_named(read, str(folder))
        shutil.rmtree(folder)


def test_a_damaged_checkpoint_is_read(attack: Attack, tmp_path: Path) -> None:
    model = load_model(tiny_model(), lora=LoraSettings(r=2))
    learner = Learner(model, LearnerSettings())
    for matrix in model.trainable():
        matrix.grad = torch.ones_like(matrix)
    learner._optimizer.step()
    good = tmp_path / "good"
    good.mkdir()
    learner.save_state(good / "optimizer.pt")
    (good / "state.json").write_text(json.dumps({"step": 3, "warmed_up": True}))
    run = RunFolder(good)
    run.begin({"model": "m", "nested": {"a": 1}}, resume=True)
    (good / "metrics.jsonl").write_text("".join(json.dumps({"step": n, "loss": 1.5}) + "\n" for n in range(9)))
    reads: dict[str, Callable[[Path], object]] = {
        "optimizer.pt": lambda folder: learner.load_state(folder / "optimizer.pt"),
        "state.json": read_progress,
        "config.json": lambda folder: RunFolder(folder).begin({"model": "m", "nested": {"a": 1}}, resume=True),
        "metrics.jsonl": lambda folder: read_metrics(folder / "metrics.jsonl"),
    }
    rng = random.Random(1)
    for number in range(attack.times(200)):
        folder = tmp_path / "bad"
        shutil.copytree(good, folder)
        name = rng.choice(sorted(reads))
        with attack.attempt((number, name, _damage(folder / name, rng))):
            _read_or_named(lambda name=name, folder=folder: reads[name](folder), str(folder))  # type: ignore[misc]
        shutil.rmtree(folder)


def test_a_damaged_data_file_is_read(attack: Attack, tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    lines = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    (tmp_path / "good.jsonl").write_bytes(lines)
    (tmp_path / "good.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "good.json").write_text(json.dumps(ROWS))
    with (tmp_path / "good.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["messages"], *([json.dumps(row["messages"])] for row in ROWS)])
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "good.parquet")
    rng = random.Random(2)
    good = sorted(path.name for path in tmp_path.glob("good.*"))
    for number in range(attack.times(200)):
        name = good[number % len(good)]
        bad = tmp_path / name.replace("good", "bad")
        shutil.copy(tmp_path / name, bad)
        with attack.attempt((number, name, _damage(bad, rng))):
            _read_or_named(lambda bad=bad: load_examples(str(bad), "sft"), str(bad))  # type: ignore[misc]
