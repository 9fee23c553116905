"""What a command takes where a person has said nothing: the same for an agent, whichever command it is."""

from __future__ import annotations

import json

import pyarrow
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from mini_agentic_rl.cli import app
from mini_agentic_rl.jobs.config import SqlTrainConfig, TrainConfig, with_agent_defaults
from mini_agentic_rl.jobs.sql import _components


def test_the_sql_agent_has_the_defaults_of_its_own_command():
    assert with_agent_defaults(TrainConfig(agent="sql")) == SqlTrainConfig()
    given = with_agent_defaults(TrainConfig(agent="sql", difficulty=[1, 2], sft_examples=32))
    assert given == SqlTrainConfig(difficulty=[1, 2], sft_examples=32)
    math = TrainConfig(difficulty=[3])
    assert with_agent_defaults(math) is math


@pytest.mark.parametrize("role", ["algorithm", "runner"])
def test_the_side_of_a_training_alone_meets_the_other_at_a_store_server(role, monkeypatch):
    monkeypatch.setenv("AGL_MANAGED_STORE", "0")
    assert _components(SqlTrainConfig())["strategy"] == "shm"
    monkeypatch.setenv("AGL_CURRENT_ROLE", role)
    assert _components(SqlTrainConfig()) == {}


@pytest.mark.parametrize("name", ["tasks.csv", "tasks.parquet"])
def test_a_file_of_any_form_is_measured_as_a_whole(name, tiny_folder, tmp_path):
    rows = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(6)]
    file = tmp_path / name
    if file.suffix == ".csv":
        file.write_text("question,answer\n" + "".join(f"{row['question']},{row['answer']}\n" for row in rows))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    arguments = ["eval", "--model", tiny_folder, "--dataset", str(file), "--max-new-tokens", "4", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["accuracy"][0]["count"] == 6
