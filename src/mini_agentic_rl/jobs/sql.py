"""The SQL agent in a job: how its settings become an agent, a reward, a store and a proxy."""

from __future__ import annotations

import logging
from typing import Any

from ..config import LightningEnvVar, resolve_bool_env_var, resolve_str_env_var
from ..errors import UserError
from ..gateway import GatewayLimits, LLMProxy
from ..recipes import Recipe
from ..recipes.sql import sql_recipe
from ..rewards import RemoteReward
from .roles import current_role
from .sql_settings import SqlTrainSettings

logger = logging.getLogger(__name__)


def prepare_sql(settings: SqlTrainSettings) -> tuple[SqlTrainSettings, Recipe, dict[str, Any]]:
    """(the settings, smaller where they ask for it; the agent; store, strategy and proxy of the trainer).

    Raises:
        UserError: a setting cannot work.
    """
    if settings.agent != "sql":
        raise UserError(f"--agent {settings.agent}: this trains the SQL agent; others are trained by `train`")
    settings = _sized(settings)
    recipe = sql_recipe(
        settings.database,
        execution_weight=settings.execution_weight,
        answer_weight=settings.answer_weight,
        reward_model=_reward_model(settings.reward_model_url),
    )
    return settings, recipe, _parts(settings)


def _sized(settings: SqlTrainSettings) -> SqlTrainSettings:
    changes: dict[str, Any] = {}
    if settings.ci_fast:
        changes = {
            "total_steps": 1,
            "total_epochs": None,
            "tasks_per_step": min(2, settings.tasks_per_step),
            "samples_per_prompt": min(2, settings.samples_per_prompt),
            "sft_examples": min(4, settings.sft_examples),
            "eval_size": min(4, settings.eval_size),
            "n_runners": min(2, settings.n_runners),
        }
    if settings.max_samples is not None:
        changes["eval_size"] = min(settings.max_samples, changes.get("eval_size", settings.eval_size))
    return settings.model_copy(update=changes)


def _parts(settings: SqlTrainSettings) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    if settings.llm_proxy:
        limits = GatewayLimits(
            max_rollout_calls=settings.max_rollout_calls, max_rollout_tokens=settings.max_rollout_tokens
        )
        parts["llm_proxy"] = LLMProxy(limits=limits)  # without models: the trained one is put behind it
    if settings.external_store_address is not None:
        if not settings.external_store_address.startswith(("http://", "https://")):
            raise UserError(
                f"--external-store-address {settings.external_store_address}: give the address of a store server, as "
                "http://localhost:9999 (agl store --port 9999)"
            )
        parts["store"] = settings.external_store_address
    elif _unmanaged() and not _server_named() and current_role() == "both":
        logger.info("no store server is named (--external-store-address): the store is a file in the output folder")
        parts["store"] = str(settings.output_dir / "rollouts.db")
        parts["strategy"] = "shm"
    return parts


def _unmanaged() -> bool:
    return not resolve_bool_env_var(LightningEnvVar.AGL_MANAGED_STORE, fallback=True)


def _server_named() -> bool:
    names = (LightningEnvVar.AGL_SERVER_HOST, LightningEnvVar.AGL_SERVER_PORT)
    return any(resolve_str_env_var(name) is not None for name in names)


def _reward_model(url: str | None) -> RemoteReward | None:
    try:
        return None if url is None else RemoteReward(url)
    except ValueError as error:
        raise UserError(f"--reward-model-url {url}: {error}") from error
