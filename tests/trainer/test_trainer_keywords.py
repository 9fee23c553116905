"""Keywords that `Trainer` does not have: what the refusal says."""

from __future__ import annotations

import pytest

from mini_agentic_rl import TraceToMessages, Trainer
from mini_agentic_rl.errors import UserError


@pytest.mark.parametrize(
    ("keyword", "told"),
    [
        ("n_runner", "n_runner is unknown: did you mean `n_runners`?"),
        ("val_data", "val_data is unknown: did you mean `val_dataset`?"),
        ("num_train_epochs", "num_train_epochs is unknown: here it is `num_epochs`"),
        ("report_to", "report_to is no argument of Trainer: here it is `logger`"),
        ("learning_rate", "give it to the algorithm, Trainer(algorithm=MiniGRPO(…))"),
        ("num_generations", "give it to the algorithm, Trainer(algorithm=MiniGRPO(…))"),
        ("lora_r", "give it to the algorithm, Trainer(algorithm=MiniGRPO(…))"),
        ("zzz", "zzz is no argument of Trainer: it takes algorithm, agent, "),
    ],
)
def test_an_unknown_keyword_is_refused_with_what_was_meant(keyword, told):
    with pytest.raises(UserError) as refused:
        Trainer(**{keyword: 1})
    assert told in str(refused.value)
    assert isinstance(refused.value, TypeError)  # what Python raises for such a call


def test_older_names_mean_the_same_and_a_value_under_both_names_is_refused():
    adapter = TraceToMessages()
    trainer = Trainer(n_workers=3, max_tasks=2, triplet_exporter=adapter, resources={}, daemon=False)
    assert (trainer.n_runners, trainer.max_rollouts, trainer.adapter) == (3, 2, adapter)
    for both in ({"n_workers": 3, "n_runners": 3}, {"max_tasks": 2, "max_rollouts": 2}):
        with pytest.raises(ValueError, match="two names of one thing"):
            Trainer(**both)


def test_a_trainer_derived_from_it_has_keywords_of_its_own():
    class Mine(Trainer):
        def __init__(self, *, colour, **rest):
            super().__init__(**rest)
            self.colour = colour

    assert Mine(colour="red", n_runners=1).colour == "red"
    with pytest.raises(UserError, match="did you mean `n_runners`"):
        Mine(colour="red", n_runner=1)
