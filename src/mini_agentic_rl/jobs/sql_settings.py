"""The settings of `train-sql`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic.config import JsonDict

from .settings import TrainSettings

_TASKS: JsonDict = {"panel": "Tasks"}
_SFT: JsonDict = {"panel": "Warm-up (SFT)"}
_RL: JsonDict = {"panel": "Reinforcement learning"}
_RUN: JsonDict = {"panel": "Run"}
_SQL: JsonDict = {"panel": "SQL agent"}
_PLACE: JsonDict = {"panel": "Where it runs"}


class SqlTrainSettings(TrainSettings):
    """What `train-sql` does: everything that `train` does, with the SQL agent."""

    agent: str = Field(default="sql", json_schema_extra=_TASKS)
    """Agent to train: `sql`; the settings under "SQL agent" are for no other."""
    dataset: str = Field(default="medical", json_schema_extra=_TASKS)
    """Tasks: `medical` (generated), or a file with `question`, `answer` and the gold query as `sql`."""
    difficulty: list[int] = Field(default=[1], json_schema_extra=_TASKS)
    """Levels of the questions, from 1 (one row of one table) to 4 (several joins); give it several times for several
    levels."""
    sft_examples: int = Field(default=192, ge=0, json_schema_extra=_SFT)
    """How many generated example conversations to imitate before reinforcement learning; 0 leaves it out. From 32 the
    embedded model learns to call the tool, from 192 to write right queries for most questions of level 1."""
    max_batch_tokens: int = Field(default=1200, ge=1, json_schema_extra=_RL)
    """Packed tokens per forward-backward pass; a question's rollouts with their prompt are about 1,000."""
    output_dir: Path = Field(default=Path("outputs/sql-agent"), json_schema_extra=_RUN)
    """Folder of the run: configuration, metrics, adapter, checkpoints, rollouts, report."""

    database: Path | None = Field(default=None, json_schema_extra=_SQL)
    """SQLite file to ask; by default the medical one, which is generated."""
    reward_model_url: str | None = Field(default=None, json_schema_extra=_SQL)
    """Address of a reward model (`mini-agentic-rl score-server`) that judges answers; without it an answer is good that
    states the values that the gold query gives."""
    execution_weight: float = Field(default=1.0, json_schema_extra=_SQL)
    """Weight of a right result in the reward, 1 or more."""
    answer_weight: float = Field(default=0.2, json_schema_extra=_SQL)
    """Weight of the answer's quality in the reward, from 0 to below 1."""

    ci_fast: bool = Field(default=False, json_schema_extra=_PLACE)
    """One step on a few tasks, to see that everything works."""
    llm_proxy: bool = Field(default=False, json_schema_extra=_PLACE)
    """Put an LLM proxy in front of the model that is trained: it records the calls, in place of the model's server."""
    external_store_address: str | None = Field(default=None, json_schema_extra=_PLACE)
    """Address of a store server that runs already (`agl store --port 9999`), as http://localhost:9999. With
    AGL_MANAGED_STORE=0 each runner is a process of its own."""


def with_agent_defaults(settings: TrainSettings) -> TrainSettings:
    """For `--agent sql` the settings of `train-sql`, with those that were given; else the settings as they are."""
    if settings.agent != "sql" or isinstance(settings, SqlTrainSettings):
        return settings
    return SqlTrainSettings(**settings.model_dump(exclude_unset=True))
