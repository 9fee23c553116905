"""verl configurations on Mini-GRPO: what each key becomes, what is refused, what is said; and one real step."""

from __future__ import annotations

import logging

import pytest
from letters import TASKS, CountLetters, Letters

from mini_agentic_rl import VERL, InMemoryLightningStore, MiniGRPO, Trainer
from mini_agentic_rl.algorithm.verl import translate
from mini_agentic_rl.algorithm.verl.convert import flatten
from mini_agentic_rl.algorithm.verl.keys import FIXED, IGNORED, NO_MEANING, SETTINGS
from mini_agentic_rl.errors import UserError
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
    assert algorithm.plan.unmet == ("data.max_prompt_length (the context length of the model bounds prompts)",)
    (warning,) = [record.getMessage() for record in caplog.records]
    for key in (
        "data.max_prompt_length",
        "gpu_memory_utilization",
        "trainer.nnodes",
        "data.train_files",
        "param_offload",
    ):
        assert key in warning
    for key in ("rollout.n,", "adv_estimator", "optim.lr", "total_epochs", "val_before_train"):
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
    found = translate({"data.max_response_length": 9, "actor_rollout_ref": {"actor": actor}})
    assert found.grpo == {"max_new_tokens": 9, **expected}


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
            {"filter_groups": {"enable": True, "metric": "seq_reward", "max_num_gen_batches": 10}},
            {"dynamic_sampling": True, "max_sampling_rounds": 10},
        ),
        (
            {"rollout_correction": {"rollout_is": "sequence", "rollout_is_threshold": 4, "rollout_rs": None}},
            {"importance_correction": "sequence", "importance_cap": 4.0},
        ),
    ],
)
def test_keys_of_the_algorithm(algorithm, expected):
    found = translate({"algorithm": algorithm})
    assert (found.grpo, found.warning) == (expected, None)


def test_keys_of_the_optimizer_and_of_the_adapter():
    optim = {
        "weight_decay": 0.01,
        "betas": [0.9, 0.99],
        "lr_warmup_steps": 3,
        "lr_warmup_steps_ratio": 0.5,
        "warmup_style": "cosine",
    }
    found = translate({"actor_rollout_ref": {"actor": {"optim": optim, "grad_clip": 0.5}, "model": {"lora_rank": 0}}})
    learner = {
        "weight_decay": 0.01,
        "betas": (0.9, 0.99),
        "warmup_steps": 3,
        "schedule": "cosine",
        "max_grad_norm": 0.5,
    }
    assert found.learner == learner
    assert found.warmup_ratio is None
    assert found.lora is None
    unset = translate(
        {"actor_rollout_ref": {"actor": {"optim": {"lr_warmup_steps": -1, "lr_warmup_steps_ratio": 0.5}}}}
    )
    assert (unset.learner, unset.warmup_ratio) == ({}, 0.5)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("algorithm.adv_estimator", "gae"),
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
        ("trainer.val_only", True),
        ("trainer.total_epochs", "two"),
    ],
)
def test_a_value_that_would_change_the_result_is_refused_by_its_key(key, value):
    with pytest.raises(UserError, match=f"{key}=.*cannot be honoured"):
        VERL({key: value})


def test_a_number_of_steps_wins_over_a_number_of_epochs():
    found = translate({"trainer": {"total_epochs": 3, "total_training_steps": 7}})
    assert found.grpo == {"total_steps": 7}
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


def test_unknown_keys_and_values_that_are_not_honoured_are_named():
    found = translate({"trainer": {"val_before_train": False, "speed": 3}, "data.shuffle": True})
    assert found.unmet == (
        "trainer.val_before_train (where there are validation tasks, they are measured first)",
        "trainer.speed (unknown)",
    )
    assert found.meaningless == ()


def test_a_learning_rate_for_full_training_is_remarked_where_an_adapter_is_trained_by_default():
    rate = {"actor_rollout_ref.actor.optim.lr": 1e-6}
    assert "lora_rank" in translate(rate).warning
    for rank in (0, 8):
        assert translate({**rate, "actor_rollout_ref.model.lora_rank": rank}).warning is None


def test_no_key_is_in_two_groups_and_every_setting_exists():
    groups = [{s.key for s in SETTINGS}, {f.key for f in FIXED}, {f.key for f in IGNORED}, set(NO_MEANING)]
    assert sum(map(len, groups)) == len(set().union(*groups))
    fields = {
        "grpo": set(MiniGRPO().settings.model_dump()),
        "learner": set(LearnerSettings().model_dump()),
        "lora": set(LoraSettings().model_dump()),
        "load": {"trust_remote_code", "adapter"},
    }
    for setting in SETTINGS:
        room, name = setting.target.split(".")
        assert room == "own" or name in fields[room], setting.key


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


def test_the_trainers_epochs_win_and_a_batch_above_the_data_set_is_refused(tiny_folder):
    algorithm = VERL(_config(tiny_folder, total_epochs=5))
    Trainer(algorithm=algorithm, num_epochs=1, hooks=[CountLetters()], n_runners=8).fit(Letters(), TASKS[:2])
    assert algorithm.summary["steps"] == 1
    with pytest.raises(UserError, match="train_batch_size=2 is more than the 1 tasks"):
        Trainer(algorithm=VERL(_config(tiny_folder, total_epochs=1)), n_runners=1).fit(Letters(), TASKS[:1])
