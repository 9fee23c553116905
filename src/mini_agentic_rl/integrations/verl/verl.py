"""`VERL`: Mini-GRPO or Mini-PPO under a configuration that was written for verl."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from ...algorithm import GRPOSettings, MiniGRPO, PPOSettings
from ...algorithm.losses import LOSSES
from ...algorithm.ppo import policy_steps, ppo_objective
from ...algorithm.state import Objective
from ...errors import UserError
from ...policy import LearnerSettings, LoraSettings, Policy
from ...types import Dataset
from .keys import (
    ACTOR,
    CRITIC_SETTINGS,
    ESTIMATORS,
    FIXED,
    MODEL,
    ROLLOUT,
    SETTINGS,
    HonouredKey,
    flatten,
)

# From a verl configuration to the settings of Mini-GRPO or Mini-PPO: pure, no torch, no I/O.


_NEVER = 10**9
_DEFAULT_KL_COEF = 0.001
_FULL_TRAINING_RATE = 2e-5
_FILTER_GROUPS = "algorithm.filter_groups.enable=True cannot be honoured"

_FIXED = {fixed.key: fixed for fixed in FIXED}
_KL_KEYS = (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type")
_OF_CRITIC = {setting.key for setting in CRITIC_SETTINGS}


@dataclass(frozen=True)
class Plan:
    """Settings of Mini-GRPO or Mini-PPO that a configuration asks for. What is absent keeps their defaults."""

    model: str | None = None
    tokenizer: str | None = None
    has_critic: bool = False
    """True if it asks for PPO."""
    grpo: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `GRPOSettings`; with a critic, of `PPOSettings`."""
    learner: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `LearnerSettings`."""
    lora: Mapping[str, Any] | None = field(default_factory=dict)
    """Fields of `LoraSettings`; None trains every weight."""
    load: Mapping[str, Any] = field(default_factory=dict)
    """Options of `load_model`."""
    warmup_ratio: float | None = None
    """Share of the optimizer steps over which the learning rate rises; None where their number is given."""
    unused: tuple[str, ...] = ()
    """Keys without effect here."""
    advice: str | None = None
    """Advice on a value that is honoured."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The key that each setting (`grpo.temperature`, …) comes from."""

    @property
    def warning(self) -> str | None:
        """The keys without effect and the advice, in one text; None if there are neither."""
        parts = [] if self.advice is None else [self.advice]
        if self.unused:
            parts.append("keys without effect here: " + ", ".join(self.unused))
        return "verl configuration: " + ". ".join(parts) if parts else None


def translate(config: Mapping[Any, Any]) -> Plan:
    """Translate a configuration of nested mappings or dotted keys.

    Raises:
        UserError: a value that would change what is learned cannot be honoured, or is none; the message names its key.
    """
    flat = {key: value for key, value in flatten(config).items() if value is not None}
    critic = flat.get("algorithm.adv_estimator") in ESTIMATORS
    settings = (*SETTINGS, *CRITIC_SETTINGS) if critic else SETTINGS
    for key, value in flat.items():
        if key in _FIXED and not (critic and key in _OF_CRITIC) and not _FIXED[key].holds(value):
            raise UserError(f"{key}={value!r} cannot be honoured: {_FIXED[key].instead}")
    values, sources = _settings(flat, settings)
    verl, grpo = values["verl"], values["grpo"]
    lora = None if values["lora"].get("r") == 0 else values["lora"]
    _set_mini_batch(verl, grpo, critic=critic)
    _set_aggregation(verl, grpo)
    if critic:
        _set_critic(verl, grpo)
    else:
        _set_estimator(verl, grpo, flat)
    if verl.get("kl_in_reward"):
        _set_kl_in_reward(verl, grpo, full_training=lora is None)
    if verl.get("importance_cap", 0) > 0:
        grpo |= {"importance_correction": "token", "importance_cap": verl["importance_cap"]}
    if verl.get("use_kl_loss"):
        grpo.setdefault("kl_coef", _DEFAULT_KL_COEF)
        if lora is None and grpo["kl_coef"] > 0:
            raise UserError(
                f"{ACTOR}.use_kl_loss=True cannot be honoured with {MODEL}.lora_rank=0: under full training "
                "no reference weights are left"
            )
    if "total_steps" in grpo:
        grpo.pop("total_epochs", None)
    if verl.get("save_freq") is not None:
        grpo["checkpoint_every"] = verl["save_freq"] if verl["save_freq"] > 0 else _NEVER
    named = {setting.key for setting in settings} | _FIXED.keys()
    advice = None
    rate = values["learner"].get("learning_rate")
    if lora is not None and "r" not in lora and rate is not None and rate < _FULL_TRAINING_RATE:
        advice = (
            f"{ACTOR}.optim.lr={rate:g} trains an adapter of low rank here, for which it is small: "
            f"set {MODEL}.lora_rank (0 trains every weight), and with an adapter about ten times the rate"
        )
    return Plan(
        model=verl.get("model"),
        tokenizer=verl.get("tokenizer"),
        has_critic=critic,
        grpo=grpo,
        learner=values["learner"],
        lora=lora,
        load=values["load"],
        warmup_ratio=None if "warmup_steps" in values["learner"] else verl.get("warmup_ratio"),
        unused=tuple(key for key in sorted(flat) if key not in named),
        advice=advice,
        sources=sources,
    )


def _settings(
    flat: Mapping[str, Any], settings: Sequence[HonouredKey]
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    values: dict[str, dict[str, Any]] = {"grpo": {}, "learner": {}, "lora": {}, "load": {}, "verl": {}}
    sources: dict[str, str] = {}
    # Without a KL term in the loss, the keys of its weight and estimator are not read.
    with_kl = str(flat.get(f"{ACTOR}.use_kl_loss")).lower() == "true"
    for setting in settings:
        if setting.key not in flat or (setting.key in _KL_KEYS and not with_kl):
            continue
        try:
            value = setting.convert(flat[setting.key])
        except ValueError as error:
            raise UserError(f"{setting.key}={flat[setting.key]!r} cannot be honoured: {error}") from None
        if value is None:
            continue
        group, name = setting.target.split(".")
        values[group][name] = value
        sources[setting.target] = setting.key
    return values, sources


def _set_mini_batch(verl: Mapping[str, Any], grpo: dict[str, Any], *, critic: bool) -> None:
    mini_batch, batch = verl.get("mini_batch"), grpo.get("tasks_per_step")
    if mini_batch is None:
        return
    if batch is None:
        raise UserError(f"{ACTOR}.ppo_mini_batch_size={mini_batch} needs data.train_batch_size: set both to one number")
    if critic:
        if mini_batch < 1 or batch % mini_batch:
            raise UserError(
                f"{ACTOR}.ppo_mini_batch_size={mini_batch} cannot be honoured with data.train_batch_size={batch}: "
                "a batch is divided into equal parts, so set it to one that goes into the other"
            )
        grpo["minibatches"] = batch // mini_batch
    elif mini_batch != batch:
        raise UserError(
            f"{ACTOR}.ppo_mini_batch_size={mini_batch} cannot be honoured with data.train_batch_size={batch}: "
            "a batch is one optimizer step here, so set both to one number"
        )


def _set_aggregation(verl: Mapping[str, Any], grpo: dict[str, Any]) -> None:
    aggregation = verl.get("aggregation")
    if aggregation is None:
        return
    if aggregation == "sum":  # a mean over rollouts of their sums is Dr. GRPO with the constant 1
        grpo |= {"loss_aggregation": "dr_grpo", "max_trajectory_tokens": 1}
        return
    grpo["loss_aggregation"] = aggregation
    if aggregation == "dr_grpo":
        if "max_new_tokens" not in grpo:
            raise UserError(
                f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm needs data.max_response_length, which it divides by"
            )
        grpo["max_trajectory_tokens"] = grpo["max_new_tokens"]


def _set_estimator(verl: Mapping[str, Any], grpo: dict[str, Any], flat: Mapping[str, Any]) -> None:
    grpo |= verl.get("estimator", {})
    estimator = flat.get("algorithm.adv_estimator")
    if estimator == "reinforce_plus_plus" and str(flat.get("algorithm.gamma", 1)) not in ("1", "1.0"):
        raise UserError(
            f"algorithm.gamma={flat['algorithm.gamma']!r} cannot be honoured with algorithm.adv_estimator={estimator}: "
            "set it to 1, or take gae"
        )
    if grpo.get("dynamic_sampling") and grpo.get("baseline") == "none":
        raise UserError(f"{_FILTER_GROUPS} with algorithm.adv_estimator={estimator}, which compares no groups")
    if grpo.get("samples_per_prompt") == 1 and grpo.get("baseline") != "none":
        raise UserError(
            f"{ROLLOUT}.n=1 cannot be honoured: rollouts of a task are compared with each other, unless "
            "algorithm.adv_estimator is reinforce_plus_plus or gae"
        )
    if _clips_rollouts(grpo):  # verl averages it so whatever loss_agg_mode says
        grpo["loss_aggregation"] = "sequence"


def _clips_rollouts(grpo: Mapping[str, Any]) -> bool:
    """Return True if the loss is of whole rollouts, and not of single tokens."""
    return "policy_loss" in grpo and LOSSES[grpo["policy_loss"]].over_rollouts is not None


def _set_critic(verl: Mapping[str, Any], grpo: dict[str, Any]) -> None:
    """Set what PPO needs: its advantages come from the critic and are always whitened over the batch."""
    grpo.pop("normalize_advantage", None)
    if grpo.get("dynamic_sampling"):
        raise UserError(f"{_FILTER_GROUPS} with algorithm.adv_estimator=gae, which compares no groups")
    if _clips_rollouts(grpo):
        raise UserError(
            f"{ACTOR}.policy_loss.loss_mode={grpo['policy_loss']!r} cannot be honoured with "
            "algorithm.adv_estimator=gae: the ratio of a whole rollout has no place beside advantages of single tokens"
        )
    if verl.get("use_kl_loss"):
        grpo["kl_in_reward"] = False


def _set_kl_in_reward(verl: Mapping[str, Any], grpo: dict[str, Any], *, full_training: bool) -> None:
    key = "algorithm.use_kl_in_reward=True cannot be honoured"
    if verl.get("use_kl_loss"):
        raise UserError(f"{key} with {ACTOR}.use_kl_loss=True: the penalty is in the reward or in the loss")
    if full_training:
        raise UserError(f"{key} with {MODEL}.lora_rank=0: under full training no reference weights are left")
    if verl.get("reward_kl_type", "fixed") != "fixed":
        raise UserError(f"{key} with algorithm.kl_ctrl.type={verl['reward_kl_type']!r}: set it to fixed")
    if verl.get("reward_kl_penalty", "kl") not in ("kl", "k1"):
        raise UserError(f"{key} with algorithm.kl_penalty={verl['reward_kl_penalty']!r}: set it to kl")
    grpo |= {"kl_in_reward": True, "kl_coef": verl.get("reward_kl_coef", _DEFAULT_KL_COEF)}


logger = logging.getLogger(__name__)


class VERL(MiniGRPO):
    """`MiniGRPO` with the settings that a verl configuration asks for; with `algorithm.adv_estimator=gae` it learns as
    `MiniPPO` does.

    A key that is left out keeps the default of these, not verl's; without `model.lora_rank` that is an adapter of low
    rank, and 0 trains every weight. Keys without effect are named in one warning.

    Args:
        config: nested mappings as in verl's YAML, dotted keys, or both; an OmegaConf `DictConfig` is one. None takes
            Mini-GRPO's defaults.
        **options: arguments of `MiniGRPO`; they win over the configuration.

    Raises:
        UserError: a value that would change what is learned cannot be honoured; the message names its key.
    """

    settings: Any  # a `PPOSettings` where the configuration asks for a critic
    settings_class: Any

    def __init__(self, config: Mapping[Any, Any] | None = None, **options: Any) -> None:
        self.config = config
        self.plan: Plan = translate(config or {})
        self._batch = "tasks_per_step" if "tasks_per_step" in options else self.plan.sources.get("grpo.tasks_per_step")
        """Name under which the number of tasks of a step was set; None if it was not."""
        chosen = _arguments(self.plan) | options
        if self.plan.has_critic:
            self.settings_class = PPOSettings
            if chosen.get("backend", "native") != "native":
                raise UserError(
                    f"algorithm.adv_estimator=gae cannot be honoured with backend={chosen['backend']!r}: "
                    "PPO has the native one alone"
                )
        if "total_steps" in options:
            chosen.setdefault("total_epochs", None)
        super().__init__(**chosen)
        if self.plan.warning is not None:
            logger.warning("%s", self.plan.warning)

    def objective(self, policy: Policy, learner: LearnerSettings) -> Objective:
        if not isinstance(self.settings, PPOSettings):
            return super().objective(policy, learner)
        counted = not self.learner_settings.total_steps
        return ppo_objective(policy, learner, self.settings, steps_are_passes=counted)

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """The loop of `MiniGRPO`, with epochs counted on `train_dataset`.

        Raises:
            UserError: `data.train_batch_size` is more than there are tasks.
            ValueError: there is nothing to train on.
            PolicyError: the model cannot be had.
        """
        if train_dataset is not None and len(train_dataset) > 0:
            self.settings, self.learner_settings = self._counted(len(train_dataset))
        await super().run(train_dataset, val_dataset)

    def _counted(self, tasks: int) -> tuple[GRPOSettings, LearnerSettings]:
        """Return the settings with the number of steps: as in verl, an epoch has whole batches only."""
        settings, learner = self.settings, self.learner_settings
        if settings.total_epochs is not None:
            if settings.tasks_per_step > tasks:
                if self._batch is not None:
                    raise UserError(f"{self._batch}={settings.tasks_per_step} is more than the {tasks} tasks there are")
                settings = settings.model_copy(update={"tasks_per_step": tasks})  # a default
            per_epoch = tasks // settings.tasks_per_step
            steps = settings.total_epochs * per_epoch
            settings = settings.model_copy(update={"total_steps": steps, "total_epochs": None})
        if self.plan.warmup_ratio is not None:
            steps = settings.total_steps * settings.epochs_per_batch
            if isinstance(settings, PPOSettings):
                steps = policy_steps(steps, settings)
            learner = learner.model_copy(update={"warmup_steps": int(self.plan.warmup_ratio * steps)})
        return settings, learner


def _arguments(planned: Plan) -> dict[str, Any]:
    """Return the keyword arguments of `MiniGRPO`."""
    arguments: dict[str, Any] = {}
    if planned.model is not None:
        arguments["model"] = planned.model
    if planned.tokenizer is not None:
        arguments["tokenizer"] = planned.tokenizer
    kind = PPOSettings if planned.has_critic else GRPOSettings
    arguments["settings"] = _valid(kind, "grpo", planned.grpo, planned.sources)
    arguments["learner"] = _valid(LearnerSettings, "learner", planned.learner, planned.sources)
    arguments["lora"] = None if planned.lora is None else _valid(LoraSettings, "lora", planned.lora, planned.sources)
    if planned.load:
        arguments["load_options"] = dict(planned.load)
    return arguments


def _valid(kind: Any, group: str, values: Mapping[str, Any], sources: Mapping[str, str]) -> Any:
    try:
        return kind(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        if not first["loc"]:
            raise UserError(f"the configuration cannot be honoured: {first['msg']}") from None
        name = str(first["loc"][0])
        key = sources.get(f"{group}.{name}", name)
        raise UserError(f"{key}={values.get(name)!r} cannot be honoured: {first['msg']}") from None
