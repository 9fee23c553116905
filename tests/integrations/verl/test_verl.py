"""verl configurations on Mini-GRPO: what each key becomes, what is refused, what is said; and one real step."""

from __future__ import annotations

import logging

import pytest
from letters import TASKS, CountLetters, Letters

from mini_agentic_rl import VERL, InMemoryLightningStore, MiniGRPO, Trainer
from mini_agentic_rl.algorithm import PPOSettings
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.integrations.verl import translate
from mini_agentic_rl.integrations.verl.keys import (
    CRITIC_SETTINGS,
    FIXED,
    SETTINGS,
    flatten,
)
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.policy import LearnerSettings, LoraSettings

USUAL = {
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "data": {
        "train_batch_size": 32,
        "max_prompt_length": 4096,
        "max_response_length": 2048,
        "train_files": "a.parquet",
    },
    "actor_rollout_ref": {
        "rollout": {
            "tensor_model_parallel_size": 1,
            "n": 4,
            "log_prob_micro_batch_size_per_gpu": 4,
            "multi_turn": {"format": "hermes"},
            "name": "vllm",
            "gpu_memory_utilization": 0.6,
        },
        "actor": {
            "ppo_mini_batch_size": 32,
            "ppo_micro_batch_size_per_gpu": 4,
            "optim": {"lr": "1e-4", "lr_warmup_steps_ratio": 0.1},
            "use_kl_loss": False,
            "kl_loss_coef": 0.001,
            "kl_loss_type": "full",
            "entropy_coeff": 0,
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.3,
            "loss_agg_mode": "token-mean",
            "fsdp_config": {"param_offload": True},
        },
        "ref": {"fsdp_config": {"param_offload": True}},
        "model": {
            "path": "some/model",
            "use_remove_padding": True,
            "enable_gradient_checkpointing": True,
            "lora_rank": 32,
            "lora_alpha": 64,
            "target_modules": ["q_proj", "v_proj"],
        },
    },
    "trainer": {
        "n_gpus_per_node": 1,
        "val_before_train": True,
        "critic_warmup": 0,
        "logger": ["console", "wandb"],
        "nnodes": 1,
        "save_freq": 64,
        "test_freq": 32,
        "total_epochs": 2,
        "total_training_steps": None,
    },
}


def test_a_usual_configuration_becomes_the_settings_of_mini_grpo(caplog):
    with caplog.at_level(logging.WARNING):
        algorithm = VERL(USUAL)
    settings = algorithm.settings
    assert (settings.tasks_per_step, settings.samples_per_prompt, settings.max_new_tokens) == (32, 4, 2048)
    assert (settings.clip_ratio, settings.clip_ratio_high, settings.loss_aggregation) == (0.2, 0.3, "token")
    assert (settings.kl_coef, settings.checkpoint_every, settings.eval_every) == (0.0, 64, 32)
    assert algorithm.learner_settings == LearnerSettings(learning_rate=1e-4, checkpointing=True)
    assert algorithm.plan.lora == {"r": 32, "alpha": 64, "target_modules": ("q_proj", "v_proj")}
    assert (algorithm.plan.model, settings.total_epochs, algorithm.plan.warmup_ratio) == ("some/model", 2, 0.1)
    (warning,) = [record.getMessage() for record in caplog.records]
    for key in (
        "data.max_prompt_length",
        "gpu_memory_utilization",
        "trainer.nnodes",
        "data.train_files",
        "param_offload",
    ):
        assert key in warning
    for key in ("rollout.n,", "adv_estimator", "optim.lr", "total_epochs"):
        assert key not in warning


def test_without_a_configuration_the_defaults_are_those_of_mini_grpo(caplog):
    ours, theirs = VERL(), MiniGRPO()
    assert ours.settings == theirs.settings
    assert ours.learner_settings == theirs.learner_settings
    assert not caplog.records


def test_nested_dotted_and_omegaconf_like_configurations_are_one():
    dotted = {"+actor_rollout_ref.rollout.n": 5, "actor_rollout_ref": {"actor.optim": {"lr": 0.1}}}
    nested = {"actor_rollout_ref": {"rollout": {"n": 5}, "actor": {"optim": {"lr": 0.1}}}}
    assert flatten(dotted) == flatten(nested)
    omegaconf = pytest.importorskip(
        "omegaconf", reason="whether a DictConfig is read stays unchecked without omegaconf"
    )
    mentioned = {
        "data": {"max_response_length": 7},
        "actor_rollout_ref": {"rollout": {"n": 3, "response_length": "${data.max_response_length}"}},
    }
    assert translate(omegaconf.OmegaConf.create(mentioned)).grpo == {"max_new_tokens": 7, "samples_per_prompt": 3}


@pytest.mark.parametrize(
    ("actor", "expected"),
    [
        ({"loss_agg_mode": "seq-mean-token-mean"}, {"loss_aggregation": "sequence"}),
        ({"loss_agg_mode": "seq-mean-token-sum"}, {"loss_aggregation": "dr_grpo", "max_trajectory_tokens": 1}),
        ({"loss_agg_mode": "seq-mean-token-sum-norm"}, {"loss_aggregation": "dr_grpo", "max_trajectory_tokens": 9}),
        ({"use_kl_loss": True}, {"kl_coef": 0.001}),
        (
            {"use_kl_loss": True, "kl_loss_coef": 0.01, "kl_loss_type": "low_var_kl"},
            {"kl_coef": 0.01, "kl_estimator": "k3"},
        ),
        ({"use_kl_loss": True, "kl_loss_type": "k3+"}, {"kl_coef": 0.001, "kl_estimator": "k2"}),
        ({"use_kl_loss": False, "kl_loss_coef": 0.01, "kl_loss_type": "abs"}, {}),
        ({"ppo_epochs": 2}, {"epochs_per_batch": 2}),
        ({"clip_ratio": 0.1}, {"clip_ratio": 0.1}),
        ({"entropy_coeff": 0.01}, {"entropy_coef": 0.01}),
        ({"policy_loss.loss_mode": "cispo"}, {"policy_loss": "cispo"}),
        (
            {"policy_loss": {"loss_mode": "gspo"}, "loss_agg_mode": "token-mean"},
            {"policy_loss": "gspo", "loss_aggregation": "sequence"},
        ),
        ({"tis_imp_ratio_cap": 3}, {"importance_correction": "token", "importance_cap": 3.0}),
        ({"tis_imp_ratio_cap": -1}, {}),
    ],
)
def test_keys_of_the_loss(actor, expected):
    plan = translate({"data.max_response_length": 9, "actor_rollout_ref": {"actor": actor}})
    assert plan.grpo == {"max_new_tokens": 9, **expected}


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ({"adv_estimator": "grpo"}, {}),
        (
            {"adv_estimator": "rloo", "norm_adv_by_std_in_grpo": True},
            {"baseline": "leave_one_out", "normalize_advantage": False},
        ),
        (
            {"adv_estimator": "reinforce_plus_plus"},
            {"baseline": "none", "advantage_normalization": "batch", "normalize_advantage": True},
        ),
        (
            {"use_kl_in_reward": True, "kl_ctrl": {"type": "fixed", "kl_coef": 0.02}, "kl_penalty": "kl"},
            {"kl_in_reward": True, "kl_coef": 0.02},
        ),
        ({"use_kl_in_reward": False, "kl_ctrl": {"kl_coef": 0.02}, "kl_penalty": "low_var_kl"}, {}),
        (
            {"filter_groups": {"enable": True, "max_num_gen_batches": 10}},
            {"dynamic_sampling": True, "max_sampling_rounds": 10},
        ),
        (
            {"rollout_correction": {"rollout_is": "sequence", "rollout_is_threshold": 4, "rollout_rs": None}},
            {"importance_correction": "sequence", "importance_cap": 4.0},
        ),
    ],
)
def test_keys_of_the_algorithm(algorithm, expected):
    plan = translate({"algorithm": algorithm})
    assert (plan.grpo, plan.warning) == (expected, None)


def test_keys_of_the_optimizer_and_of_the_adapter():
    optim = {
        "weight_decay": 0.01,
        "betas": [0.9, 0.99],
        "lr_warmup_steps": 3,
        "lr_warmup_steps_ratio": 0.5,
        "warmup_style": "cosine",
    }
    plan = translate({"actor_rollout_ref": {"actor": {"optim": optim, "grad_clip": 0.5}, "model": {"lora_rank": 0}}})
    learner = {
        "weight_decay": 0.01,
        "betas": (0.9, 0.99),
        "warmup_steps": 3,
        "schedule": "cosine",
        "max_grad_norm": 0.5,
    }
    assert plan.learner == learner
    assert plan.warmup_ratio is None
    assert plan.lora is None
    unset = translate(
        {"actor_rollout_ref": {"actor": {"optim": {"lr_warmup_steps": -1, "lr_warmup_steps_ratio": 0.5}}}}
    )
    assert (unset.learner, unset.warmup_ratio) == ({}, 0.5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorithm.adv_estimator", "remax"),
        ("trainer.critic_warmup", 2),
        ("algorithm.rollout_correction.rollout_rs", "token_k1"),
        ("actor_rollout_ref.actor.entropy_coeff", "some"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "kl_cov"),
        ("actor_rollout_ref.actor.loss_agg_mode", "token-sum"),
        ("actor_rollout_ref.actor.optim.lr", "fast"),
        ("actor_rollout_ref.actor.optim.lr", -1),
        ("actor_rollout_ref.rollout.n", 1),
        ("actor_rollout_ref.rollout.n", 2.5),
        ("actor_rollout_ref.rollout.top_p", 0.9),
        ("actor_rollout_ref.rollout.temperature", 0),
        ("actor_rollout_ref.model.lora_rank", -1),
        ("actor_rollout_ref.actor.clip_ratio", 2),
        ("custom_reward_function.path", "reward.py"),
        ("reward_model.overlong_buffer.enable", True),
        ("trainer.val_only", True),
        ("trainer.total_epochs", "two"),
    ],
)
def test_a_value_that_would_change_the_result_is_refused_by_its_key(key, value):
    with pytest.raises(UserError, match=f"{key}=.*cannot be honoured"):
        VERL({key: value})


def test_a_number_of_steps_wins_over_a_number_of_epochs():
    plan = translate({"trainer": {"total_epochs": 3, "total_training_steps": 7}})
    assert plan.grpo == {"total_steps": 7}
    by_name = VERL(
        {"trainer": {"total_epochs": 3}, "actor_rollout_ref.rollout.n": 4}, total_steps=5, samples_per_prompt=6
    )
    assert (by_name.settings.steps(100), by_name.settings.samples_per_prompt) == (5, 6)


def test_keys_that_contradict_each_other_here_are_refused():
    actor = "actor_rollout_ref.actor"
    with pytest.raises(UserError, match=r"ppo_mini_batch_size=8 .*train_batch_size=32"):
        translate({"data.train_batch_size": 32, f"{actor}.ppo_mini_batch_size": 8})
    with pytest.raises(UserError, match=r"needs data\.train_batch_size"):
        translate({f"{actor}.ppo_mini_batch_size": 8})
    with pytest.raises(UserError, match=r"needs data\.max_response_length"):
        translate({f"{actor}.loss_agg_mode": "seq-mean-token-sum-norm"})
    with pytest.raises(UserError, match=r"use_kl_loss=True .*lora_rank=0"):
        translate({f"{actor}.use_kl_loss": True, "actor_rollout_ref.model.lora_rank": 0})
    with pytest.raises(UserError, match=r"use_kl_in_reward=True .*use_kl_loss=True"):
        translate({f"{actor}.use_kl_loss": True, "algorithm.use_kl_in_reward": True})
    with pytest.raises(UserError, match=r"use_kl_in_reward=True .*kl_ctrl\.type='adaptive'"):
        translate({"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.type": "adaptive"})


def test_a_learning_rate_for_full_training_is_remarked_where_an_adapter_is_trained_by_default():
    rate = {"actor_rollout_ref.actor.optim.lr": 1e-6}
    assert "lora_rank" in translate(rate).warning
    for rank in (0, 8):
        assert translate({**rate, "actor_rollout_ref.model.lora_rank": rank}).warning is None


def test_no_key_is_in_two_groups_and_every_setting_exists():
    assert not {setting.key for setting in SETTINGS} & {fixed.key for fixed in FIXED}
    fields = {
        "grpo": set(MiniGRPO().settings.model_dump()),
        "learner": set(LearnerSettings().model_dump()),
        "lora": set(LoraSettings().model_dump()),
        "load": {"trust_remote_code", "adapter"},
    }
    for setting in SETTINGS:
        room, name = setting.target.split(".")
        assert room == "verl" or name in fields[room], setting.key
    assert {setting.target for setting in CRITIC_SETTINGS} <= {f"grpo.{name}" for name in PPOSettings.model_fields}


GAE = {"algorithm.adv_estimator": "gae"}


def test_generalized_advantage_estimation_is_ppo():
    config = {
        "algorithm": {"adv_estimator": "gae", "gamma": 0.99, "lam": 0.9, "norm_adv_by_std_in_grpo": False},
        "critic": {"cliprange_value": 0.5, "optim": {"lr": 1e-5}, "ppo_micro_batch_size_per_gpu": 4, "grad_clip": 1.0},
        "data.train_batch_size": 32,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
        "trainer.critic_warmup": 3,
    }
    algorithm = VERL(config)
    settings = algorithm.settings
    assert isinstance(settings, PPOSettings)
    assert (settings.gamma, settings.gae_lambda, settings.value_clip, settings.value_warmup_steps) == (
        0.99,
        0.9,
        0.5,
        3,
    )
    assert (settings.tasks_per_step, settings.minibatches, settings.samples_per_prompt) == (32, 4, 1)
    assert (settings.normalize_advantage, settings.kl_in_reward) == (True, True)
    assert algorithm.plan.unused == ("critic.grad_clip", "critic.optim.lr", "critic.ppo_micro_batch_size_per_gpu")
    assert VERL(GAE).settings == PPOSettings()
    assert VERL(GAE, gae_lambda=0.5).settings.gae_lambda == 0.5


def test_where_the_penalty_of_ppo_stands_is_as_the_configuration_says():
    assert translate({**GAE, "actor_rollout_ref.actor.use_kl_loss": True}).grpo == {
        "kl_in_reward": False,
        "kl_coef": 0.001,
    }
    assert translate({**GAE, "algorithm.use_kl_in_reward": True}).grpo == {"kl_in_reward": True, "kl_coef": 0.001}


def test_without_a_critic_its_keys_mean_nothing():
    plan = translate({"algorithm": {"gamma": 0.9, "lam": 0.9}, "critic.cliprange_value": 0.5})
    assert plan.grpo == {}
    assert plan.unused == ("algorithm.gamma", "algorithm.lam", "critic.cliprange_value")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"algorithm.gamma": 1.5}, r"algorithm\.gamma=1\.5 cannot be honoured"),
        ({"algorithm.lam": "much"}, r"algorithm\.lam='much' cannot be honoured: expected a number"),
        ({"trainer.critic_warmup": -1}, r"trainer\.critic_warmup=-1 cannot be honoured"),
        ({"algorithm.filter_groups.enable": True}, r"filter_groups\.enable=True .*adv_estimator=gae"),
        ({"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"}, r"loss_mode='gspo' .*adv_estimator=gae"),
        (
            {"data.train_batch_size": 32, "actor_rollout_ref.actor.ppo_mini_batch_size": 12},
            r"ppo_mini_batch_size=12 .*train_batch_size=32.*equal parts",
        ),
    ],
)
def test_what_ppo_cannot_do_is_refused_by_its_key(config, complaint):
    with pytest.raises(UserError, match=complaint):
        VERL({**GAE, **config})


def test_what_contradicts_the_estimator_is_refused():
    estimator = {"algorithm.adv_estimator": "reinforce_plus_plus"}
    with pytest.raises(UserError, match=r"gamma=0\.9 .*adv_estimator=reinforce_plus_plus"):
        translate({**estimator, "algorithm.gamma": 0.9})
    with pytest.raises(UserError, match=r"filter_groups\.enable=True .*adv_estimator=reinforce_plus_plus"):
        translate({**estimator, "algorithm.filter_groups.enable": True})
    with pytest.raises(UserError, match=r"adv_estimator=gae .*backend='trl'"):
        VERL(GAE, backend="trl")


def _config(folder: str, **trainer: object) -> dict[str, object]:
    return {
        "data": {"train_batch_size": 2, "max_response_length": 4},
        "actor_rollout_ref": {
            "model": {"path": folder, "lora_rank": 4},
            "rollout": {"n": 4, "temperature": 1.2},
            "actor": {"optim": {"lr": 1e-3, "lr_warmup_steps_ratio": 0.5}, "ppo_epochs": 2},
        },
        "trainer": trainer,
    }


def test_a_verl_configuration_trains_and_counts_epochs_on_the_tasks(tiny_folder):
    store = InMemoryLightningStore()
    algorithm = VERL(_config(tiny_folder, total_epochs=2, save_freq=-1))
    Trainer(algorithm=algorithm, store=store, hooks=[CountLetters()], n_runners=8).fit(Letters(), TASKS[:3])
    assert algorithm.summary["steps"] == 2  # 3 tasks hold one whole batch of 2 an epoch
    assert algorithm.learner_settings.warmup_steps == 2  # half of 2 steps of 2 epochs each


def test_the_trainers_epochs_win_and_fewer_tasks_than_the_default_batch_are_one_batch(tiny_folder):
    config = _config(tiny_folder, total_epochs=5)
    del config["data"]["train_batch_size"]
    algorithm = VERL(config)
    Trainer(algorithm=algorithm, num_epochs=1, hooks=[CountLetters()], n_runners=8).fit(Letters(), TASKS[:2])
    assert (algorithm.settings.tasks_per_step, algorithm.summary["steps"]) == (2, 1)


def test_a_batch_above_the_data_set_is_refused(tiny_folder):
    with pytest.raises(UserError, match="train_batch_size=2 is more than the 1 tasks"):
        Trainer(algorithm=VERL(_config(tiny_folder, total_epochs=1)), n_runners=1).fit(Letters(), TASKS[:1])
    algorithm = VERL(_config(tiny_folder, total_epochs=1), tasks_per_step=4)
    with pytest.raises(UserError, match=r"^tasks_per_step=4 is more than the 2 tasks"):
        Trainer(algorithm=algorithm, n_runners=1).fit(Letters(), TASKS[:2])


def test_a_configuration_for_ppo_trains_a_critic(tiny_folder):
    steps = []

    class Keep(MetricsLogger):
        def log(self, metrics, *, step):
            steps.append(metrics)

    config = _config(tiny_folder, total_training_steps=2, critic_warmup=1)
    algorithm = VERL({**config, "algorithm": {"adv_estimator": "gae", "lam": 0.9}})
    Trainer(algorithm=algorithm, hooks=[CountLetters()], n_runners=8, logger=Keep()).fit(Letters(), TASKS[:3])
    assert algorithm.summary["steps"] == 2
    assert sum("value/mean" in row for row in steps) == 2
    assert algorithm.learner_settings.warmup_steps == 2  # half of 1 step without the critic's, of 2 passes of 2 parts
