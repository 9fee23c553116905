"""`train --algorithm ppo` and `--backend`: from options to the algorithm, or to one line."""

from __future__ import annotations

import pytest

from mini_agentic_rl.algorithm import MiniPPO
from mini_agentic_rl.commands.options import read_settings
from mini_agentic_rl.commands.train import make_algorithm
from mini_agentic_rl.commands.train_config import TrainConfig
from mini_agentic_rl.errors import UserError


def test_ppo_takes_its_options_and_shares_the_others():
    options = {"gae_lambda": 0.9, "value_clip": 0.3, "value_trains_adapter": True, "kl_coef": 0.01}
    made = make_algorithm(TrainConfig(algorithm="ppo", samples_per_prompt=1, total_steps=7, **options))
    assert isinstance(made, MiniPPO)
    assert (made.settings.gae_lambda, made.settings.value_clip, made.settings.total_steps) == (0.9, 0.3, 7)
    assert made.settings.value_trains_adapter
    assert made.settings.kl_in_reward
    assert made.settings.loss_aggregation == "token"


def test_options_of_the_critic_are_refused_without_one():
    with pytest.raises(UserError, match="`value_clip` is PPO's: give --algorithm ppo with it"):
        read_settings(TrainConfig, {"value_clip": 0.3})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"algorithm": "ppo", "baseline": "group"}, "--baseline group compares rollouts"),
        ({"samples_per_prompt": 1}, "--samples-per-prompt 1 leaves nothing to compare"),
        ({"algorithm": "rloo", "backend": "trl"}, "baseline='leave_one_out'"),
        ({"algorithm": "ppo", "backend": "trl"}, "backend: 'trl' is MiniGRPO's"),
    ],
)
def test_what_cannot_go_together_is_one_line(options, complaint):
    with pytest.raises(UserError, match=complaint):
        make_algorithm(read_settings(TrainConfig, options))
