"""CrewAI, in an environment of its own."""

from __future__ import annotations

import pytest
import train_crewai

from mini_agentic_rl import rollout
from mini_agentic_rl.rewards.math import is_correct

from .conversation import CALL, check_tool_loop
from .training import check_training


@rollout
def streamed(task, llm):
    output = train_crewai.make_crew(llm, stream=True).kickoff({"question": task["question"]})
    return float(is_correct(output.raw, task["answer"]))


@pytest.mark.parametrize("agent", [train_crewai.solve, streamed], ids=["whole", "streamed"])
async def test_the_tool_loop_is_one_trained_conversation(agent):
    await check_tool_loop(agent, CALL)  # words before a call are not sent back: such a turn would be a branch


def test_the_example_trains_two_steps(calling_folder, tasks_file, tmp_path, monkeypatch, capsys, caplog):
    check_training(train_crewai, (), calling_folder, tasks_file, tmp_path / "run", monkeypatch)
    assert "evaluation: after RL: 2 done in" in capsys.readouterr().err
    assert [record for record in caplog.records if record.name.startswith("crewai")] == []
