"""From a verl configuration to the settings of Mini-GRPO: pure, no torch, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...errors import UserError
from .convert import flatten, truth
from .keys import ACTOR, FIXED, IGNORED, MODEL, NO_MEANING, ROLLOUT, SETTINGS, Fixed

_NEVER = 10**9
_DEFAULT_KL_COEF = 0.001
_FULL_TRAINING_RATE = 2e-5

_FIXED = {fixed.key: fixed for fixed in FIXED}
_KL_KEYS = (f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type")
_SETTINGS = {setting.key for setting in SETTINGS}


@dataclass(frozen=True)
class Plan:
    """What a configuration asks for, in Mini-GRPO's words. What is absent keeps Mini-GRPO's default."""

    model: str | None = None
    tokenizer: str | None = None
    grpo: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `GRPOSettings`."""
    learner: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `LearnerSettings`."""
    lora: Mapping[str, Any] | None = field(default_factory=dict)
    """Fields of `LoraSettings`; None trains every weight."""
    load: Mapping[str, Any] = field(default_factory=dict)
    """Options of `load_model`."""
    warmup_ratio: float | None = None
    """Share of the optimizer steps over which the learning rate rises; None where their number is given."""
    unmet: tuple[str, ...] = ()
    """Keys that are not honoured, each with what happens instead."""
    meaningless: tuple[str, ...] = ()
    """Keys that have no meaning here."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The key that each setting (`grpo.temperature`, …) comes from."""

    @property
    def warning(self) -> str | None:
        """All that a person should know, in one text; None where everything is honoured."""
        parts = []
        if self.unmet:
            parts.append("not honoured: " + "; ".join(self.unmet))
        if self.meaningless:
            parts.append("no meaning here: " + ", ".join(self.meaningless))
        return "verl configuration: " + ". ".join(parts) if parts else None


def translate(config: Mapping[Any, Any]) -> Plan:
    """Translate a configuration of nested mappings or dotted keys.

    Raises:
        UserError: a value that would change what is learned cannot be honoured, or is none; the message names its key.
    """
    flat = {key: value for key, value in flatten(config).items() if value is not None}
    for key, value in flat.items():
        if key in _FIXED and not _FIXED[key].holds(value):
            raise UserError(f"{key}={value!r} cannot be honoured: {_FIXED[key].instead}")
    found, sources = _settings(flat)
    own = found["own"]
    lora = None if found["lora"].get("r") == 0 else found["lora"]
    _check_mini_batch(own, found["grpo"])
    _set_aggregation(own, found["grpo"])
    _set_estimator(own, found["grpo"])
    if own.get("kl_in_reward"):
        _set_kl_in_reward(own, found["grpo"], full_training=lora is None)
    if own.get("importance_cap", 0) > 0:
        found["grpo"] |= {"importance_correction": "token", "importance_cap": own["importance_cap"]}
    if own.get("use_kl_loss"):
        found["grpo"].setdefault("kl_coef", _DEFAULT_KL_COEF)
        if lora is None and found["grpo"]["kl_coef"] > 0:
            raise UserError(
                f"{ACTOR}.use_kl_loss=True cannot be honoured with {MODEL}.lora_rank=0: under full training "
                "no reference weights are left"
            )
    if "total_steps" in found["grpo"]:
        found["grpo"].pop("total_epochs", None)
    if own.get("save_freq") is not None:
        found["grpo"]["checkpoint_every"] = own["save_freq"] if own["save_freq"] > 0 else _NEVER
    unmet = [f"{key} ({fixed.instead})" for key in sorted(flat) if (fixed := _unmet(key, flat[key])) is not None]
    unmet += [f"{key} (unknown)" for key in sorted(flat) if not _is_known(key)]
    rate = found["learner"].get("learning_rate")
    if lora is not None and "r" not in lora and rate is not None and rate < _FULL_TRAINING_RATE:
        unmet.append(
            f"{ACTOR}.optim.lr={rate:g} trains an adapter of low rank here, for which it is small: "
            f"set {MODEL}.lora_rank (0 trains every weight), and with an adapter about ten times the rate"
        )
    return Plan(
        model=own.get("model"),
        tokenizer=own.get("tokenizer"),
        grpo=found["grpo"],
        learner=found["learner"],
        lora=lora,
        load=found["load"],
        warmup_ratio=None if "warmup_steps" in found["learner"] else own.get("warmup_ratio"),
        unmet=tuple(unmet),
        meaningless=tuple(key for key in sorted(flat) if _has_no_meaning(key)),
        sources=sources,
    )


def _settings(flat: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    found: dict[str, dict[str, Any]] = {"grpo": {}, "learner": {}, "lora": {}, "load": {}, "own": {}}
    sources: dict[str, str] = {}
    with_kl = _has_kl_loss(flat)
    for setting in SETTINGS:
        if setting.key not in flat or (setting.key in _KL_KEYS and not with_kl):
            continue
        try:
            value = setting.convert(flat[setting.key])
        except ValueError as error:
            raise UserError(f"{setting.key}={flat[setting.key]!r} cannot be honoured: {error}") from None
        if value is None:
            continue
        room, name = setting.target.split(".")
        found[room][name] = value
        sources[setting.target] = setting.key
    return found, sources


def _has_kl_loss(flat: Mapping[str, Any]) -> bool:
    """Without it, how the KL divergence is weighed and estimated says nothing."""
    try:
        return truth(flat.get(f"{ACTOR}.use_kl_loss", False))
    except ValueError:
        return False  # the error is raised where the key itself is read


def _check_mini_batch(own: Mapping[str, Any], grpo: Mapping[str, Any]) -> None:
    mini_batch, batch = own.get("mini_batch"), grpo.get("tasks_per_step")
    if mini_batch is None:
        return
    if batch is None:
        raise UserError(f"{ACTOR}.ppo_mini_batch_size={mini_batch} needs data.train_batch_size: set both to one number")
    if mini_batch != batch:
        raise UserError(
            f"{ACTOR}.ppo_mini_batch_size={mini_batch} cannot be honoured with data.train_batch_size={batch}: "
            "a batch is one optimizer step here, so set both to one number"
        )


def _set_aggregation(own: Mapping[str, Any], grpo: dict[str, Any]) -> None:
    aggregation = own.get("aggregation")
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


def _set_estimator(own: Mapping[str, Any], grpo: dict[str, Any]) -> None:
    grpo |= own.get("estimator", {})
    if grpo.get("samples_per_prompt") == 1 and grpo.get("baseline") != "none":
        raise UserError(
            f"{ROLLOUT}.n=1 cannot be honoured: rollouts of a task are compared with each other, unless "
            "algorithm.adv_estimator is reinforce_plus_plus"
        )
    if grpo.get("policy_loss") == "gspo":  # verl averages it so whatever loss_agg_mode says
        grpo["loss_aggregation"] = "sequence"


def _set_kl_in_reward(own: Mapping[str, Any], grpo: dict[str, Any], *, full_training: bool) -> None:
    key = "algorithm.use_kl_in_reward=True cannot be honoured"
    if own.get("use_kl_loss"):
        raise UserError(f"{key} with {ACTOR}.use_kl_loss=True: the penalty is in the reward or in the loss")
    if full_training:
        raise UserError(f"{key} with {MODEL}.lora_rank=0: under full training no reference weights are left")
    if own.get("reward_kl_type", "fixed") != "fixed":
        raise UserError(f"{key} with algorithm.kl_ctrl.type={own['reward_kl_type']!r}: set it to fixed")
    if own.get("reward_kl_penalty", "kl") not in ("kl", "k1"):
        raise UserError(f"{key} with algorithm.kl_penalty={own['reward_kl_penalty']!r}: set it to kl")
    grpo |= {"kl_in_reward": True, "kl_coef": own.get("reward_kl_coef", _DEFAULT_KL_COEF)}


def _unmet(key: str, value: Any) -> Fixed | None:
    """The entry of `IGNORED` that the key falls under, if its value is not the one that holds."""
    fixed = next((fixed for fixed in IGNORED if _is_under(key, fixed.key)), None)
    return None if fixed is None or fixed.holds(value) else fixed


def _has_no_meaning(key: str) -> bool:
    return key not in _FIXED and any(_is_under(key, root) for root in NO_MEANING)


def _is_known(key: str) -> bool:
    ignored = any(_is_under(key, fixed.key) for fixed in IGNORED)
    return key in _SETTINGS or key in _FIXED or ignored or _has_no_meaning(key)


def _is_under(key: str, root: str) -> bool:
    return key == root or key.startswith(f"{root}.")
