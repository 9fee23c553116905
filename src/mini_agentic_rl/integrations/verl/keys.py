"""The keys of a verl configuration that `VERL` reads: the tables behind it.

A key sets something here (`SETTINGS`), or any value but the one that applies here would change what is learned and is
an error (`FIXED`). All other keys have no effect and are named in a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Reading single values of a verl configuration. Each converter raises `ValueError` with what it expected.


Convert = Callable[[Any], Any]


def flatten(config: Mapping[Any, Any]) -> dict[str, Any]:
    """Return values by dotted keys, from nested mappings, dotted keys or a mixture; a later one wins.

    A leading `+`, with which verl's command line adds a key, is dropped. Lists become tuples.
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = str(key).lstrip("+")
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": item for inner, item in flatten(value).items()}
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            flat[name] = tuple(value)
        else:
            flat[name] = value
    return flat


def number(value: Any) -> float:
    """Return a number; text is converted, since YAML reads 1e-6 as text."""
    if isinstance(value, bool):
        raise ValueError("expected a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError("expected a number") from None


def whole(value: Any) -> int:
    """Return a whole number."""
    given = number(value)
    if given != int(given):
        raise ValueError("expected a whole number")
    return int(given)


def text(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ValueError("expected a text")
    return value


def truth(value: Any) -> bool:
    """Return True or False, also from text."""
    given = {"true": True, "false": False}.get(str(value).lower())
    if given is None:
        raise ValueError("expected True or False")
    return given


def numbers(value: Any) -> tuple[float, ...]:
    """Return numbers of a list."""
    if not isinstance(value, tuple):
        raise ValueError("expected a list of numbers")
    return tuple(map(number, value))


def modules(value: Any) -> str | tuple[str, ...]:
    """Return `all-linear`, a pattern, or a tuple of names of layers."""
    return tuple(map(text, value)) if isinstance(value, tuple) else text(value)


def one_of(choices: Mapping[str, Any]) -> Convert:
    """Return a converter from one of these words to its value."""

    def convert(value: Any) -> Any:
        if str(value) not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return choices[str(value)]

    return convert


def positive(value: Any) -> int | None:
    """Return a whole number; None for -1 and 0, which mean that it is not set."""
    given = whole(value)
    return given if given > 0 else None


ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
MODEL = "actor_rollout_ref.model"


@dataclass(frozen=True)
class HonouredKey:
    """A key that sets something; where several set the same, the later in the table wins. None leaves the default."""

    key: str
    target: str
    """`grpo.NAME`, `learner.NAME`, `lora.NAME`, `load.NAME`: a field of those settings or an option of `load_model`;
    `verl.NAME`: read by `translate`."""
    convert: Convert


_OVER_BATCH = {"advantage_normalization": "batch", "normalize_advantage": True}

SETTINGS: Sequence[HonouredKey] = (
    HonouredKey("data.train_batch_size", "grpo.tasks_per_step", whole),
    HonouredKey("data.max_response_length", "grpo.max_new_tokens", whole),
    HonouredKey("data.seed", "grpo.seed", whole),
    HonouredKey("data.tokenizer", "verl.tokenizer", text),
    HonouredKey("data.trust_remote_code", "load.trust_remote_code", truth),
    HonouredKey(f"{MODEL}.path", "verl.model", text),
    HonouredKey(f"{MODEL}.tokenizer_path", "verl.tokenizer", text),
    HonouredKey(f"{MODEL}.trust_remote_code", "load.trust_remote_code", truth),
    HonouredKey(f"{MODEL}.lora_rank", "lora.r", whole),
    HonouredKey(f"{MODEL}.lora_alpha", "lora.alpha", whole),
    HonouredKey(f"{MODEL}.target_modules", "lora.target_modules", modules),
    HonouredKey(f"{MODEL}.lora_adapter_path", "load.adapter", text),
    HonouredKey(f"{MODEL}.enable_gradient_checkpointing", "learner.checkpointing", truth),
    HonouredKey(f"{ROLLOUT}.n", "grpo.samples_per_prompt", whole),
    HonouredKey(f"{ROLLOUT}.temperature", "grpo.temperature", number),
    HonouredKey(f"{ROLLOUT}.response_length", "grpo.max_new_tokens", whole),
    HonouredKey(f"{ACTOR}.clip_ratio", "grpo.clip_ratio", number),
    HonouredKey(f"{ACTOR}.clip_ratio_low", "grpo.clip_ratio", number),
    HonouredKey(f"{ACTOR}.clip_ratio_high", "grpo.clip_ratio_high", number),
    HonouredKey(f"{ACTOR}.ppo_epochs", "grpo.epochs_per_batch", whole),
    HonouredKey(f"{ACTOR}.ppo_mini_batch_size", "verl.mini_batch", whole),
    HonouredKey(f"{ACTOR}.use_kl_loss", "verl.use_kl_loss", truth),
    HonouredKey(f"{ACTOR}.kl_loss_coef", "grpo.kl_coef", number),
    HonouredKey(
        f"{ACTOR}.kl_loss_type",
        "grpo.kl_estimator",
        # `+` reports the value of k1 or k3 with the gradient of k2, which is what k2 has.
        one_of(
            {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3", "k1+": "k2", "k3+": "k2"}
        ),
    ),
    HonouredKey(
        f"{ACTOR}.loss_agg_mode",
        "verl.aggregation",
        one_of(
            {
                "token-mean": "token",
                "seq-mean-token-mean": "sequence",
                "seq-mean-token-sum": "sum",
                "seq-mean-token-sum-norm": "dr_grpo",
            }
        ),
    ),
    HonouredKey(f"{ACTOR}.grad_clip", "learner.max_grad_norm", number),
    HonouredKey(f"{ACTOR}.ppo_max_token_len_per_gpu", "learner.max_batch_tokens", whole),
    HonouredKey(f"{ACTOR}.optim.lr", "learner.learning_rate", number),
    HonouredKey(f"{ACTOR}.optim.weight_decay", "learner.weight_decay", number),
    HonouredKey(f"{ACTOR}.optim.betas", "learner.betas", numbers),
    HonouredKey(f"{ACTOR}.optim.lr_warmup_steps_ratio", "verl.warmup_ratio", number),
    HonouredKey(f"{ACTOR}.optim.lr_warmup_steps", "learner.warmup_steps", positive),
    HonouredKey(f"{ACTOR}.optim.total_training_steps", "learner.total_steps", positive),
    *(
        HonouredKey(f"{ACTOR}.optim.{name}", "learner.schedule", one_of({"constant": "constant", "cosine": "cosine"}))
        for name in ("warmup_style", "lr_scheduler_type")
    ),
    HonouredKey(f"{ACTOR}.entropy_coeff", "grpo.entropy_coef", number),
    HonouredKey(
        f"{ACTOR}.policy_loss.loss_mode",
        "grpo.policy_loss",
        one_of({"vanilla": "clip", "gspo": "gspo", "cispo": "cispo"}),
    ),
    HonouredKey(f"{ACTOR}.tis_imp_ratio_cap", "verl.importance_cap", number),
    HonouredKey("algorithm.norm_adv_by_std_in_grpo", "grpo.normalize_advantage", truth),
    HonouredKey(
        "algorithm.adv_estimator",
        "verl.estimator",
        one_of(
            {
                "grpo": {},
                "AdvantageEstimator.GRPO": {},
                "gae": {},  # see `CRITIC_SETTINGS`
                "AdvantageEstimator.GAE": {},
                "rloo": {"baseline": "leave_one_out", "normalize_advantage": False},
                "reinforce_plus_plus": {**_OVER_BATCH, "baseline": "none"},
                "reinforce_plus_plus_baseline": {**_OVER_BATCH, "baseline": "group"},
            }
        ),
    ),
    HonouredKey("algorithm.use_kl_in_reward", "verl.kl_in_reward", truth),
    HonouredKey("algorithm.kl_ctrl.kl_coef", "verl.reward_kl_coef", number),
    HonouredKey("algorithm.kl_ctrl.type", "verl.reward_kl_type", text),
    HonouredKey("algorithm.kl_penalty", "verl.reward_kl_penalty", text),
    HonouredKey("algorithm.filter_groups.enable", "grpo.dynamic_sampling", truth),
    HonouredKey("algorithm.filter_groups.max_num_gen_batches", "grpo.max_sampling_rounds", positive),
    HonouredKey(
        "algorithm.rollout_correction.rollout_is",
        "grpo.importance_correction",
        one_of({"token": "token", "sequence": "sequence", "null": "none"}),
    ),
    HonouredKey("algorithm.rollout_correction.rollout_is_threshold", "grpo.importance_cap", number),
    HonouredKey("trainer.total_epochs", "grpo.total_epochs", positive),
    HonouredKey("trainer.total_training_steps", "grpo.total_steps", whole),
    HonouredKey("trainer.test_freq", "grpo.eval_every", positive),
    HonouredKey("trainer.save_freq", "verl.save_freq", whole),
)


@dataclass(frozen=True)
class Fixed:
    """A key whose value is fixed here."""

    key: str
    holds: Callable[[Any], bool]
    """Return True for the value that applies here."""
    instead: str
    """Advice for another value."""


def _is_off(value: Any) -> bool:
    return str(value).lower() in ("false", "0", "0.0", "none", "null", "")


def _is(*words: str) -> Callable[[Any], bool]:
    return lambda value: str(value).lower() in words


FIXED: Sequence[Fixed] = (
    Fixed("algorithm.rollout_correction.rollout_rs", _is_off, "no rollout is rejected: set it to null"),
    Fixed("algorithm.rollout_correction.rollout_is_batch_normalize", _is_off, "weights stay as they are"),
    Fixed("algorithm.use_pf_ppo", _is_off, "set it to False"),
    Fixed(f"{ACTOR}.optim.min_lr_ratio", _is_off, "the learning rate falls to 0: set it to 0"),
    Fixed(f"{ACTOR}.optim.num_cycles", _is("0.5"), "the cosine falls once: set it to 0.5"),
    Fixed(f"{ROLLOUT}.top_p", _is("1", "1.0"), "truncated sampling biases the ratios: set it to 1"),
    Fixed(f"{ROLLOUT}.top_k", _is("-1", "0"), "truncated sampling biases the ratios: set it to -1"),
    Fixed(f"{ROLLOUT}.do_sample", _is("true"), "greedy rollouts of one task are all alike: set it to True"),
    Fixed(f"{ROLLOUT}.ignore_eos", _is_off, "a reply ends at its end token: set it to False"),
    Fixed(f"{MODEL}.exclude_modules", _is_off, f"name the layers to adapt in {MODEL}.target_modules"),
    Fixed(f"{MODEL}.custom_chat_template", _is_off, "save the template with the tokenizer"),
    Fixed("custom_reward_function.path", _is_off, "the reward comes from the agent or from a hook"),
    Fixed("reward_model.enable", _is_off, "the reward comes from the agent or from a hook"),
    Fixed("reward_model.custom_reward_function.path", _is_off, "the reward comes from the agent or from a hook"),
    Fixed("reward.reward_model.enable", _is_off, "the reward comes from the agent or from a hook"),
    Fixed("reward.custom_reward_function.path", _is_off, "the reward comes from the agent or from a hook"),
    Fixed("trainer.val_only", _is_off, "measure without training by `mini-agentic-rl evaluate`"),
    Fixed("trainer.critic_warmup", _is_off, "there is no critic without algorithm.adv_estimator=gae: set it to 0"),
    *(
        Fixed(f"{root}.enable", _is_off, "give overlong_buffer, a share of the reply, and overlong_penalty to VERL")
        for root in (
            "reward_model.overlong_buffer",
            "reward_model.reward_kwargs.overlong_buffer_cfg",
            "reward.reward_kwargs.overlong_buffer_cfg",
        )
    ),
)

ESTIMATORS: Sequence[str] = ("gae", "AdvantageEstimator.GAE")
"""Values of `algorithm.adv_estimator` that have a critic, which is PPO. verl's critic is a model of its own; here it is
a value head on the policy's weights, which learns in the policy's steps and has a learning rate of its own."""

CRITIC_SETTINGS: Sequence[HonouredKey] = (
    HonouredKey("algorithm.gamma", "grpo.gamma", number),
    HonouredKey("algorithm.lam", "grpo.gae_lambda", number),
    HonouredKey("critic.cliprange_value", "grpo.value_clip", number),
    HonouredKey("trainer.critic_warmup", "grpo.value_warmup_steps", whole),
)
