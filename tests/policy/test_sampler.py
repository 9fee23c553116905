"""Drawing tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mini_agentic_rl.policy.sampler import Row, sample, uniform
from mini_agentic_rl.tokens import SamplingParams


def _rows(count, **params):
    return [Row(SamplingParams(**params), seed, ()) for seed in range(count)]


def _frequencies(logits, count=4000, **params):
    draws = sample(logits.repeat(count, 1), _rows(count, **params))
    return np.bincount([draw.token for draw in draws], minlength=logits.shape[1]) / count


def test_draws_follow_the_distribution():
    logits = torch.tensor([[1.0, 0.0, -1.0, 2.0, -30.0]])
    expected = torch.softmax(logits[0] / 0.7, -1).numpy()
    assert _frequencies(logits, temperature=0.7) == pytest.approx(expected, abs=0.03)


def test_a_vocabulary_larger_than_a_bucket_is_drawn_from_evenly():
    draws = sample(torch.zeros(3000, 1000), _rows(3000))
    counts = np.bincount(np.array([draw.token for draw in draws]) // 100, minlength=10)
    assert counts.min() > 220
    assert counts.max() < 380


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.full((2000, 300), float("-inf"))
    logits[:, [0, 127, 128, 299]] = 0.0
    assert {draw.token for draw in sample(logits, _rows(2000))} == {0, 127, 128, 299}


def test_greedy_takes_the_likeliest_and_reports_its_probability_at_temperature_one():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    (draw,) = sample(logits.clone(), _rows(1, temperature=0.0))
    assert draw.token == 1
    assert draw.logprob == pytest.approx(float(torch.log_softmax(logits, -1)[0, 1]), abs=1e-6)


def test_log_probabilities_are_after_temperature_and_before_truncation():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    (draw,) = sample(logits.clone(), _rows(1, temperature=2.0, top_k=1))
    assert draw.token == 1
    assert draw.logprob == pytest.approx(float(torch.log_softmax(logits / 2, -1)[0, 1]), abs=1e-6)


@pytest.mark.parametrize(
    ("params", "kept"),
    [({"top_k": 2}, {0, 1}), ({"top_p": 0.6}, {0}), ({"top_p": 0.8}, {0, 1}), ({"min_p": 0.3}, {0, 1})],
)
def test_truncation_keeps_what_it_says(params, kept):
    logits = torch.log(torch.tensor([[0.65, 0.25, 0.06, 0.04]]))
    assert set(np.nonzero(_frequencies(logits, count=800, **params))[0]) == kept


def test_a_draw_does_not_depend_on_its_batch():
    logits = torch.randn(8, 500, generator=torch.Generator().manual_seed(0))
    together = [draw.token for draw in sample(logits.clone(), _rows(8))]
    alone = [sample(logits[i : i + 1].clone(), [_rows(8)[i]])[0].token for i in range(8)]
    assert together == alone


def test_the_same_seed_draws_the_same_and_positions_differ():
    assert uniform(5, 3) == uniform(5, 3)
    assert len({uniform(5, position) for position in range(1000)}) == 1000
    assert 0.45 < np.mean([uniform(seed, 0) for seed in range(3000)]) < 0.55


def test_bias_and_penalties_act_before_the_temperature():
    logits = torch.zeros(1, 4)
    (draw,) = sample(logits.clone(), [Row(SamplingParams(temperature=0.0, logit_bias={2: 5.0}), 0, ())])
    assert draw.token == 2
    penalised = Row(
        SamplingParams(temperature=0.0, logit_bias={2: 5.0}, presence_penalty=4, frequency_penalty=1), 0, (2, 2)
    )
    (draw,) = sample(logits.clone(), [penalised])
    assert draw.token != 2


def test_top_log_probabilities_come_best_first():
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    first, second = sample(
        logits.repeat(2, 1), [Row(SamplingParams(top_logprobs=2), 0, ()), Row(SamplingParams(), 1, ())]
    )
    assert [token for token, _ in first.top] == [1, 2]
    assert second.top == ()
