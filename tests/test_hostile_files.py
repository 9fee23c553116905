"""Hostile and damaged files and templates: each is read, or refused in one line; a template fills no memory."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mini_agentic_rl.algorithm.checkpoint import read_progress
from mini_agentic_rl.commands import TrainConfig
from mini_agentic_rl.commands.config_file import read_config
from mini_agentic_rl.datasets import load_examples, load_task_dataset
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.metrics import read_metrics
from mini_agentic_rl.policy import Learner, LearnerSettings, LoraSettings, load_model
from mini_agentic_rl.policy.load import save_weights
from mini_agentic_rl.trainer import RunFolder
from mini_agentic_rl.types import PromptTemplate
from tiny import tiny_model

ROWS = [
    {"messages": [{"role": "user", "content": f"{n} + 1?"}, {"role": "assistant", "content": str(n + 1)}]}
    for n in range(40)
]


OTHER_CONTENT = (b"null", b"[]", b"{}", b"3", b'"text"', b"\xff\xfe\x00", b'{"r": "x"}', b'{"peft_type": 3}')


def _damage(path: Path, rng: random.Random) -> None:
    """Cut, replace or change a file."""
    data = path.read_bytes()
    at = rng.randrange(len(data))
    flipped, head = bytearray(data), bytearray(data)
    for _ in range(rng.randrange(1, 9)):
        flipped[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    head[rng.randrange(min(200, len(data)))] = rng.randrange(256)
    damaged = (
        *(data[:at], b"", bytes(flipped), bytes(head)),
        *(data[:at] + bytes(64) + data[at + 64 :], data[:at] + rng.randbytes(64) + data[at + 64 :]),
        *(data[:at] + rng.randbytes(32) + data[at:], data + rng.randbytes(100)),
        *(rng.choice(OTHER_CONTENT), b"[" * 100_000),
    )
    path.write_bytes(rng.choice(damaged))


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


def test_a_damaged_adapter_is_loaded(tmp_path: Path) -> None:
    save_weights(load_model(tiny_model(), lora=LoraSettings(r=2)), tmp_path / "good")
    rng = random.Random(0)
    for number in range(20):
        folder = tmp_path / "bad"
        shutil.copytree(tmp_path / "good", folder)
        file = folder / rng.choice(["adapter_config.json", "adapter_model.safetensors"])
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


def test_a_damaged_checkpoint_is_read(tmp_path: Path) -> None:
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
    for _ in range(20):
        folder = tmp_path / "bad"
        shutil.copytree(good, folder)
        name = rng.choice(sorted(reads))
        _damage(folder / name, rng)
        _read_or_named(lambda name=name, folder=folder: reads[name](folder), str(folder))  # type: ignore[misc]
        shutil.rmtree(folder)


def test_a_damaged_data_file_is_read(tmp_path: Path) -> None:
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
    for number in range(20):
        name = good[number % len(good)]
        bad = tmp_path / name.replace("good", "bad")
        shutil.copy(tmp_path / name, bad)
        _damage(bad, rng)
        _read_or_named(lambda bad=bad: load_examples(str(bad), "sft"), str(bad))  # type: ignore[misc]


TEMPLATES = [
    *("{a:>999999999}", "{a:999999999999999999}", "{a:.999999999f}", "{a:{a}}", "{a!r:>99999999}", "{a:0>9999999999}"),
    *("{a.__class__}", "{a.__class__.__mro__[1].__subclasses__}", "{b.__init__.__globals__}", "{b._x}"),
    *("{a[__class__]}", "{", "}", "{}", "{0}", "{a!z}", "{a:", "{a.b.c}", "{a[0][0]}", "{a" + "[0]" * 5000 + "}"),
    *("{" * 10_000, "{a:%Y%m%d}", "{a:{b}{c}}", "{nothing}", "{a!s:" + "9" * 5000 + "}", "{a:١٠٠٠٠٠٠٠٠٠}"),
]


def test_a_template_shows_no_inside_and_fills_no_memory() -> None:
    class Task:
        """Something with a way to its module."""

        _x = "private"

    for template in TEMPLATES:
        for value in (7, 1.5, "text", Task(), [1]):
            try:
                text = PromptTemplate(template=template).format(a=value, b=Task(), c=9)
            except (ValueError, LookupError, AttributeError, TypeError):
                continue  # as str.format refuses, too
            assert len(text) < 100_000
            assert "private" not in text
            assert "._" not in template


BOMBS = {
    "aliases.yaml": "a: &a [1,1,1,1,1,1,1,1,1]\n"
    + "".join(f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in itertools.pairwise("abcdefghijklm")),
    "merges.yaml": "a: &a {k: 1}\n"
    + "".join(
        f"{new}: &{new} {{<<: [{','.join([f'*{old}'] * 9)}]}}\n" for old, new in itertools.pairwise("abcdefghijklm")
    ),
    "itself.yaml": "model: &a [*a]\n",
    "itself_too.yaml": "model: &a {k: *a}\n",
    "deep.yaml": "model: " + "[" * 20_000,
    "deep_blocks.yaml": "\n".join("  " * n + "a:" for n in range(400)),
    "deep.json": '{"model": ' + "[" * 20_000 + "]" * 20_000 + "}",
    "deep.toml": "model = " + "[" * 20_000 + "]" * 20_000,
    "digits.yaml": "seed: " + "9" * 100_000,
    "digits.json": '{"seed": ' + "9" * 100_000 + "}",
    "sixties.yaml": "seed: " + ":".join(["59"] * 60_000),
    "long.yaml": "model: " + "x" * 2**22,
    "code.yaml": "model: !!python/object/apply:os.system ['true']",
    "nul.yaml": "model: 'a\x00b'",
    "surrogate.json": '{"model": "\\ud800"}\n{',
    "list.yaml": "[1, 2]",
    "number.json": "1",
    "infinite.json": '{"learning_rate": 1e999, "unknown_name": NaN}',
    "keys.yaml": "? [1, 2]\n: 1\n",
    "empty.toml": "a",
}


def test_a_file_of_settings_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    for name, text in BOMBS.items():
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        try:
            read_config(path, TrainConfig)
        except UserError as refusal:
            one_line = str(refusal)
            if len(one_line) > 10_000 or "\n" in one_line:
                raise AssertionError(f"{len(one_line)} characters of refusal") from None


def nested_json(depth: int) -> str:
    return '{"question": ' + "[" * depth + "]" * depth + ', "answer": "1"}'


DATA: dict[str, bytes] = {
    "long line.jsonl": b'{"question": "' + b"x" * 2**24 + b'", "answer": "1"}',
    "no newline.jsonl": b"x" * 2**24,
    "deep.jsonl": nested_json(100_000).encode(),
    "deep.json": b"[" * 100_000,
    "digits.jsonl": b'{"question": "q", "answer": ' + b"9" * 100_000 + b"}",
    "nul.jsonl": b"\x00" * 1000,
    "binary.parquet": b"PAR1" + bytes(range(256)) * 40 + b"PAR1",
    "binary.csv": bytes(range(256)) * 40,
    "latin.jsonl": '{"question": "é", "answer": "1"}'.encode("latin-1"),
    "quotes.csv": b"question,answer\n" + b'"' * 200_001,
    "wide.csv": b"," * 200_000 + b"\n" + b"," * 200_000,
    "marks.jsonl": json.dumps({"question": "q", "answer": "####" * 50_000}).encode(),
    "scalar.json": b"1",
    "empty.json": b"",
    "surrogate.jsonl": b'{"question": "\\ud800", "answer": "\\udfff"}',
}


def test_a_data_file_is_read_or_refused(tmp_path: Path) -> None:
    for name, content in DATA.items():
        path = tmp_path / name
        path.write_bytes(content)
        try:
            list(load_task_dataset(path, "all"))
        except UserError as refusal:
            told = str(refusal)
            if len(told) > 10_000:
                raise AssertionError(f"{len(told)} characters of refusal") from None
