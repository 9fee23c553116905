"""verl configurations on Mini-GRPO: what each key becomes, what is refused, what is said; and real steps."""

from __future__ import annotations

import logging

import pytest
from letters import TASKS, CountLetters, Letters

from mini_agentic_rl import VERL, MiniGRPO, Trainer
from mini_agentic_rl.algorithm import PPOSettings
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.integrations.verl import translate
from mini_agentic_rl.integrations.verl.keys import CRITIC_SETTINGS, FIXED, SETTINGS, flatten
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.policy import LearnerSettings, LoraSettings

ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
USUAL = {
    "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
    "data": {
        "train_batch_size": 32,
        "max_prompt_length": 4096,
        "max_response_length": 2048,
        "train_files": "a.parquet",
    },
    "actor_rollout_ref": {
        "rollout": {"n": 4, "multi_turn": {"format": "hermes"}, "name": "vllm", "gpu_memory_utilization": 0.6},
        "actor": {
            "ppo_mini_batch_size": 32,
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
        "model": {
            "path": "some/model",
            "enable_gradient_checkpointing": True,
            "lora_rank": 32,
            "lora_alpha": 64,
            "target_modules": ["q_proj", "v_proj"],
        },
    },
    "trainer": {
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
    for key in ("max_prompt_length", "gpu_memory_utilization", "trainer.nnodes", "data.train_files", "param_offload"):
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
    omegaconf = pytest.importorskip("omegaconf", reason="a DictConfig is left unchecked without omegaconf")
    mentioned = {"data": {"length": 7}, "actor_rollout_ref": {"rollout": {"n": 3, "response_length": "${data.length}"}}}
    assert translate(omegaconf.OmegaConf.create(mentioned)).grpo == {"max_new_tokens": 7, "samples_per_prompt": 3}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean"}, {"loss_aggregation": "sequence"}),
        ({f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum"}, {"loss_aggregation": "dr_grpo", "max_trajectory_tokens": 1}),
        (
            {f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm", "data.max_response_length": 9},
            {"loss_aggregation": "dr_grpo", "max_trajectory_tokens": 9, "max_new_tokens": 9},
        ),
        ({f"{ACTOR}.use_kl_loss": True}, {"kl_coef": 0.001}),
        (
            {f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_coef": 0.01, f"{ACTOR}.kl_loss_type": "low_var_kl"},
            {"kl_coef": 0.01, "kl_estimator": "k3"},
        ),
        ({f"{ACTOR}.use_kl_loss": True, f"{ACTOR}.kl_loss_type": "k3+"}, {"kl_coef": 0.001, "kl_estimator": "k2"}),
        ({f"{ACTOR}.use_kl_loss": False, f"{ACTOR}.kl_loss_coef": 0.01, f"{ACTOR}.kl_loss_type": "abs"}, {}),
        ({f"{ACTOR}.ppo_epochs": 2, f"{ACTOR}.clip_ratio": 0.1}, {"epochs_per_batch": 2, "clip_ratio": 0.1}),
        (
            {f"{ACTOR}.policy_loss.loss_mode": "gspo", f"{ACTOR}.loss_agg_mode": "token-mean"},
            {"policy_loss": "gspo", "loss_aggregation": "sequence"},
        ),
        ({f"{ACTOR}.tis_imp_ratio_cap": 3}, {"importance_correction": "token", "importance_cap": 3.0}),
        ({f"{ACTOR}.tis_imp_ratio_cap": -1}, {}),
        (
            {"algorithm.adv_estimator": "rloo", "algorithm.norm_adv_by_std_in_grpo": True},
            {"baseline": "leave_one_out", "normalize_advantage": False},
        ),
        (
            {"algorithm.adv_estimator": "reinforce_plus_plus"},
            {"baseline": "none", "advantage_normalization": "batch", "normalize_advantage": True},
        ),
        (
            {
                "algorithm": {
                    "use_kl_in_reward": True,
                    "kl_ctrl": {"type": "fixed", "kl_coef": 0.02},
                    "kl_penalty": "kl",
                }
            },
            {"kl_in_reward": True, "kl_coef": 0.02},
        ),
        ({"algorithm": {"use_kl_in_reward": False, "kl_ctrl.kl_coef": 0.02, "kl_penalty": "low_var_kl"}}, {}),
        (
            {"algorithm.filter_groups": {"enable": True, "max_num_gen_batches": 10}},
            {"dynamic_sampling": True, "max_sampling_rounds": 10},
        ),
        (
            {"algorithm.rollout_correction": {"rollout_is": "sequence", "rollout_is_threshold": 4, "rollout_rs": None}},
            {"importance_correction": "sequence", "importance_cap": 4.0},
        ),
        ({"trainer": {"total_epochs": 3, "total_training_steps": 7}}, {"total_steps": 7}),
        ({"algorithm.adv_estimator": "gae", f"{ACTOR}.use_kl_loss": True}, {"kl_in_reward": False, "kl_coef": 0.001}),
        (
            {"algorithm.adv_estimator": "gae", "algorithm.use_kl_in_reward": True},
            {"kl_in_reward": True, "kl_coef": 0.001},
        ),
    ],
)
def test_keys_of_the_loss_and_of_the_algorithm(config, expected):
    plan = translate(config)
    assert (plan.grpo, plan.warning) == (expected, None)


def test_keys_of_the_optimizer_and_of_the_adapter():
    warmup = {"lr_warmup_steps": 3, "lr_warmup_steps_ratio": 0.5, "warmup_style": "cosine"}
    optim = {"weight_decay": 0.01, "betas": [0.9, 0.99], **warmup}
    plan = translate({f"{ACTOR}.optim": optim, f"{ACTOR}.grad_clip": 0.5, f"{MODEL}.lora_rank": 0})
    expected = {"weight_decay": 0.01, "betas": (0.9, 0.99), "warmup_steps": 3, "schedule": "cosine"}
    assert plan.learner == {**expected, "max_grad_norm": 0.5}
    assert (plan.warmup_ratio, plan.lora) == (None, None)
    unset = translate({f"{ACTOR}.optim": {"lr_warmup_steps": -1, "lr_warmup_steps_ratio": 0.5}})
    assert (unset.learner, unset.warmup_ratio) == ({}, 0.5)
    rate = {f"{ACTOR}.optim.lr": 1e-6}
    assert "lora_rank" in translate(rate).warning
    for rank in (0, 8):
        assert translate({**rate, f"{MODEL}.lora_rank": rank}).warning is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorithm.adv_estimator", "remax"),
        ("trainer.critic_warmup", 2),
        ("algorithm.rollout_correction.rollout_rs", "token_k1"),
        (f"{ACTOR}.entropy_coeff", "some"),
        (f"{ACTOR}.policy_loss.loss_mode", "kl_cov"),
        (f"{ACTOR}.loss_agg_mode", "token-sum"),
        (f"{ACTOR}.optim.lr", "fast"),
        (f"{ACTOR}.optim.lr", -1),
        (f"{ROLLOUT}.n", 1),
        (f"{ROLLOUT}.n", 2.5),
        (f"{ROLLOUT}.top_p", 0.9),
        (f"{ROLLOUT}.temperature", 0),
        (f"{MODEL}.lora_rank", -1),
        (f"{ACTOR}.clip_ratio", 2),
        ("custom_reward_function.path", "reward.py"),
        ("reward_model.overlong_buffer.enable", True),
        ("trainer.val_only", True),
        ("trainer.total_epochs", "two"),
    ],
)
def test_a_value_that_would_change_the_result_is_refused_by_its_key(key, value):
    with pytest.raises(UserError, match=f"{key}=.*cannot be honoured"):
        VERL({key: value})


GAE = {"algorithm.adv_estimator": "gae"}
REINFORCE = {"algorithm.adv_estimator": "reinforce_plus_plus"}


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"data.train_batch_size": 32, f"{ACTOR}.ppo_mini_batch_size": 8}, "ppo_mini_batch_size=8 .*batch_size=32"),
        ({f"{ACTOR}.ppo_mini_batch_size": 8}, r"needs data\.train_batch_size"),
        ({f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum-norm"}, r"needs data\.max_response_length"),
        ({f"{ACTOR}.use_kl_loss": True, f"{MODEL}.lora_rank": 0}, "use_kl_loss=True .*lora_rank=0"),
        ({f"{ACTOR}.use_kl_loss": True, "algorithm.use_kl_in_reward": True}, "in_reward=True .*use_kl_loss=True"),
        (
            {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.type": "adaptive"},
            r"use_kl_in_reward=True .*kl_ctrl\.type='adaptive'",
        ),
        ({**REINFORCE, "algorithm.gamma": 0.9}, r"gamma=0\.9 .*adv_estimator=reinforce_plus_plus"),
        ({**REINFORCE, "algorithm.filter_groups.enable": True}, "enable=True .*adv_estimator=reinforce_plus_plus"),
        ({**GAE, "algorithm.gamma": 1.5}, r"algorithm\.gamma=1\.5 cannot be honoured"),
        ({**GAE, "algorithm.lam": "much"}, r"algorithm\.lam='much' cannot be honoured: expected a number"),
        ({**GAE, "trainer.critic_warmup": -1}, r"trainer\.critic_warmup=-1 cannot be honoured"),
        ({**GAE, "algorithm.filter_groups.enable": True}, r"filter_groups\.enable=True .*adv_estimator=gae"),
        ({**GAE, f"{ACTOR}.policy_loss.loss_mode": "gspo"}, r"loss_mode='gspo' .*adv_estimator=gae"),
        (
            {**GAE, "data.train_batch_size": 32, f"{ACTOR}.ppo_mini_batch_size": 12},
            "ppo_mini_batch_size=12 .*train_batch_size=32.*equal parts",
        ),
    ],
)
def test_keys_that_contradict_each_other_here_are_refused(config, complaint):
    with pytest.raises(UserError, match=complaint):
        VERL(config)


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


def test_generalized_advantage_estimation_is_ppo():
    config = {
        "algorithm": {"adv_estimator": "gae", "gamma": 0.99, "lam": 0.9, "norm_adv_by_std_in_grpo": False},
        "critic": {"cliprange_value": 0.5, "optim": {"lr": 1e-5}, "grad_clip": 1.0},
        "data.train_batch_size": 32,
        f"{ACTOR}.ppo_mini_batch_size": 8,
        "trainer.critic_warmup": 3,
    }
    algorithm = VERL(config)
    settings = algorithm.settings
    assert isinstance(settings, PPOSettings)
    assert (settings.gamma, settings.gae_lambda) == (0.99, 0.9)
    assert (settings.value_clip, settings.value_warmup_steps) == (0.5, 3)
    assert (settings.tasks_per_step, settings.minibatches, settings.samples_per_prompt) == (32, 4, 1)
    assert (settings.normalize_advantage, settings.kl_in_reward) == (True, True)
    assert algorithm.plan.unused == ("critic.grad_clip", "critic.optim.lr")
    assert VERL(GAE).settings == PPOSettings()
    assert VERL(GAE, gae_lambda=0.5).settings.gae_lambda == 0.5
    without = translate({"algorithm": {"gamma": 0.9, "lam": 0.9}, "critic.cliprange_value": 0.5})
    assert without.grpo == {}
    assert without.unused == ("algorithm.gamma", "algorithm.lam", "critic.cliprange_value")
    with pytest.raises(UserError, match=r"adv_estimator=gae .*backend='trl'"):
        VERL(GAE, backend="trl")


def _config(folder: str, **trainer: object) -> dict[str, object]:
    return {
        "data": {"train_batch_size": 2, "max_response_length": 4},
        MODEL: {"path": folder, "lora_rank": 4},
        ROLLOUT: {"n": 4, "temperature": 1.2},
        ACTOR: {"optim": {"lr": 1e-3, "lr_warmup_steps_ratio": 0.5}, "ppo_epochs": 2},
        "trainer": trainer,
    }


def test_a_verl_configuration_trains_and_counts_epochs_on_the_tasks(tiny_folder):
    algorithm = VERL(_config(tiny_folder, total_epochs=2, save_freq=-1))
    Trainer(algorithm=algorithm, hooks=[CountLetters()], n_runners=8).fit(Letters(), TASKS[:3])
    assert algorithm.summary["steps"] == 2  # 3 tasks hold one whole batch of 2 an epoch
    assert algorithm.learner_settings.warmup_steps == 2  # half of 2 steps of 2 epochs each


def test_a_batch_above_the_data_set_is_refused_but_a_default_is_lowered(tiny_folder):
    with pytest.raises(UserError, match="train_batch_size=2 is more than the 1 tasks"):
        Trainer(algorithm=VERL(_config(tiny_folder, total_epochs=1)), n_runners=1).fit(Letters(), TASKS[:1])
    algorithm = VERL(_config(tiny_folder, total_epochs=1), tasks_per_step=4)
    with pytest.raises(UserError, match=r"^tasks_per_step=4 is more than the 2 tasks"):
        Trainer(algorithm=algorithm, n_runners=1).fit(Letters(), TASKS[:2])
    settings, _ = VERL({"trainer.total_epochs": 5})._counted(2)
    assert (settings.tasks_per_step, settings.total_steps) == (2, 5)


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
