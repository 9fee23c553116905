"""`train-sql`: its settings, and the agent, reward, store and proxy that they define."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import httpx
import typer

from ...commands import TRAIN_SHORT_HELP, TrainConfig, current_role, train_and_show
from ...commands.options import TRAIN, settings_command
from ...config import LightningEnvVar, resolve_bool_env_var, resolve_str_env_var
from ...datasets import SHORT_IMITATION
from ...environments import Recipe
from ...errors import UserError
from ...gateway import GatewayLimits, LLMProxy
from ...rewards import RemoteReward
from ...trainer import DEFAULT_SERVER

logger = logging.getLogger(__name__)

PORTS = (DEFAULT_SERVER[1], 9999)
"""Ports on which a running store server is looked for: the default, and that of agent-lightning's guides."""
_PROBE_SECONDS = 2.0
_SERVER_VARIABLES = (LightningEnvVar.AGL_SERVER_HOST, LightningEnvVar.AGL_SERVER_PORT)

SQL_DEFAULTS: Final[Mapping[str, Any]] = {
    **SHORT_IMITATION,
    "loop.tool_format": "compact",
    "warm_start.examples": 192,
    "learner.max_batch_tokens": 1200,
}
"""The SQL agent needs more examples than others before it writes queries. Its rollouts are longer: a question's have
about 1,000 tokens with their prompt."""


class SqlTrainConfig(TrainConfig):
    """The configuration of `train-sql`: all that `train` has, with the SQL agent."""

    defaults: ClassVar[Mapping[str, Any]] = {
        **TrainConfig.defaults,
        **SQL_DEFAULTS,
        "tasks.agent": "sql",
        "tasks.dataset": "medical",
        "tasks.difficulty": [1],
        "run.output_dir": Path("outputs/sql-agent"),
    }
    panels: ClassVar[Mapping[str, Sequence[str]]] = {
        "Tasks": TrainConfig.panels["Tasks"],
        "SQL agent": ("database", "reward_model_url", "execution_weight", "answer_weight"),
        **TrainConfig.panels,
        "Where it runs": ("ci_fast", "llm_proxy", "external_store_address"),
    }
    helps: ClassVar[Mapping[str, str]] = {
        **TrainConfig.helps,
        "tasks.agent": 'Agent to train: `sql`; the settings under "SQL agent" are for no other.',
        "tasks.dataset": "Tasks: `medical` (generated), or a file with `question`, `answer` and the gold query as "
        "`sql`.",
        "tasks.difficulty": "Levels of the questions, from 1 (one row of one table) to 4 (several joins); several with "
        "commas, as 1,2.",
        "warm_start.examples": "Number of generated example conversations to imitate before reinforcement learning; 0 "
        "leaves it out. From 32 the embedded model learns to call the tool, from 192 to write right queries for most "
        "questions of level 1.",
        "learner.max_batch_tokens": "Packed tokens per forward-backward pass; a question's rollouts with their prompt "
        "are about 1,000.",
    }

    database: Path | None = None
    """SQLite file to ask; by default the medical one, which is generated."""
    reward_model_url: str | None = None
    """Address of a reward model (`mini-agentic-rl score-server`) that judges answers; without it an answer is good that
    states the values that the gold query gives."""
    execution_weight: float = 1.0
    """Weight of a right result in the reward, 1 or more."""
    answer_weight: float = 0.2
    """Weight of the answer's quality in the reward, from 0 to below 1."""

    ci_fast: bool = False
    """One step on a few tasks, to see that everything works."""
    llm_proxy: bool = False
    """Put an LLM proxy in front of the model that is trained: it records the calls, in place of the model's server."""
    external_store_address: str | None = None
    """Address of a store server that runs already (`agl store --port 9999`), as http://localhost:9999. With
    AGL_MANAGED_STORE=0 each runner is a process of its own, and one on this computer is found without its address."""

    def prepare(self) -> tuple[SqlTrainConfig, Recipe, dict[str, Any]]:
        """Return the settings (smaller with `ci_fast`), the agent, and the store, strategy and proxy of the trainer.

        Raises:
            UserError: a setting cannot work.
        """
        if self.harness.agent_command:
            raise UserError("the SQL agent is no command: leave one of the two out", setting="agent_command")
        if self.tasks.agent != "sql":
            raise UserError(
                f"this trains the SQL agent, and {self.tasks.agent} is trained by the command train", setting="agent"
            )
        settings = _sized(self)
        url = settings.reward_model_url
        try:
            reward_model = None if url is None else RemoteReward(url)
        except ValueError as error:
            raise UserError(f"{url}: {error}", setting="reward_model_url") from error
        from .agent import sql_recipe  # the agents SDK is not imported for --help

        recipe = sql_recipe(
            settings.database,
            execution_weight=settings.execution_weight,
            answer_weight=settings.answer_weight,
            reward_model=reward_model,
        )
        return settings, recipe, _components(settings)


def _sized(settings: SqlTrainConfig) -> SqlTrainConfig:
    loop = settings.loop
    changes: dict[str, Any] = {}
    if settings.ci_fast:
        changes = {
            "total_steps": 1,
            "total_epochs": None,
            "tasks_per_step": min(2, loop.tasks_per_step),
            "samples_per_prompt": min(2, loop.samples_per_prompt),
            "sft_examples": min(4, settings.warm_start.examples),
            "eval_size": min(4, loop.eval_size or 4),
            "n_runners": min(2, settings.n_runners),
        }
    if settings.max_samples is not None:
        most = settings.max_samples
        changes["eval_size"] = min(most, changes.get("eval_size", loop.eval_size or most))
    return settings.changed(**changes) if changes else settings


def _components(settings: SqlTrainConfig) -> dict[str, Any]:
    components: dict[str, Any] = {}
    if settings.llm_proxy:
        limits = GatewayLimits(**settings.limits.model_dump())
        components["llm_proxy"] = LLMProxy(limits=limits)  # without models: the trainer adds the trained one
    if settings.external_store_address is not None:
        if not settings.external_store_address.startswith(("http://", "https://")):
            raise UserError(
                f"{settings.external_store_address} is no address of a store server, as http://localhost:9999 is "
                "(agl store --port 9999)",
                setting="external_store_address",
            )
        components["store"] = settings.external_store_address
    elif (
        settings.strategy is None
        and not resolve_bool_env_var(LightningEnvVar.AGL_MANAGED_STORE, fallback=True)
        and not any(resolve_str_env_var(name) is not None for name in _SERVER_VARIABLES)
        and current_role() == "both"
    ):
        running = _running_store()
        if running is not None:
            logger.info("rollouts go to the store server that runs at %s", running)
            components["store"] = running
        else:
            file = settings.run.output_dir / "rollouts.db"
            logger.warning(
                "AGL_MANAGED_STORE=0, but no store server runs on this computer (looked at the ports %s), and none is "
                "named by `external_store_address`, AGL_SERVER_HOST or AGL_SERVER_PORT: rollouts go to the file %s",
                " and ".join(map(str, PORTS)),
                file,
            )
            components["store"] = str(file)
            components["strategy"] = "shm"
    return components


def _running_store() -> str | None:
    """Return the address of the store server that runs on this computer; None if none answers."""
    with httpx.Client(trust_env=False, timeout=_PROBE_SECONDS) as client:
        for port in PORTS:
            address = f"http://127.0.0.1:{port}"
            try:
                answer = client.get(f"{address}/v1/agl/health")
                if answer.status_code == 200 and answer.json() == {"status": "ok"}:
                    return address
            except (httpx.HTTPError, ValueError):  # no server, or another one
                continue
    return None


def train_sql(settings: SqlTrainConfig) -> None:
    """Train the SQL agent: it answers questions about a database; measured before, between and after."""
    train_and_show(settings)


def add_sql_command(app: typer.Typer) -> None:
    """Add `train-sql` to the commands of the package."""
    short_help = (*TRAIN_SHORT_HELP, "database", "reward_model_url", "ci_fast")
    settings_command(app, "train-sql", SqlTrainConfig, panel=TRAIN, short_help=short_help)(train_sql)
