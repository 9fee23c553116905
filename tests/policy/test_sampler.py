"""Drawing tokens."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from mini_agentic_rl.policy import sampler
from mini_agentic_rl.policy.sampler import Row, TokenCounts, fit_mask, sample, uniform
from mini_agentic_rl.tokens import ConstraintError, SamplingParams


def _rows(count, **params):
    return [Row(SamplingParams(**params), seed) for seed in range(count)]


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


@pytest.mark.parametrize(("params", "divisor"), [({"temperature": 0.0}, 1), ({"temperature": 2.0, "top_k": 1}, 2)])
def test_log_probabilities_are_after_temperature_and_before_truncation_and_greedy_ones_at_temperature_one(
    params, divisor
):
    logits = torch.tensor([[0.0, 3.0, 1.0]])
    (draw,) = sample(logits.clone(), _rows(1, **params))
    assert draw.token == 1
    assert draw.logprob == pytest.approx(float(torch.log_softmax(logits / divisor, -1)[0, 1]), abs=1e-6)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 2**70}, {0, 1, 2, 3}),
        ({"top_p": 0.6}, {0}),
        ({"top_p": 0.8}, {0, 1}),
        ({"min_p": 0.3}, {0, 1}),
    ],
)
def test_truncation_keeps_what_it_says(params, kept):
    logits = torch.log(torch.tensor([[0.65, 0.25, 0.06, 0.04]]))
    assert set(np.nonzero(_frequencies(logits, count=800, **params))[0]) == kept


def test_the_same_seed_draws_the_same_and_positions_differ():
    assert uniform(5, 3) == uniform(5, 3)
    assert len({uniform(5, position) for position in range(1000)}) == 1000
    assert 0.45 < np.mean([uniform(seed, 0) for seed in range(3000)]) < 0.55


def test_the_repetition_penalty_scales_what_the_prompt_or_the_answer_has_said():
    logits = torch.tensor([[2.0, -1.0, 3.0, 0.5, 2.5]])
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, top_logprobs=5, presence_penalty=0.25)
    (draw,) = sample(logits.clone(), [Row(params, 0, 2, TokenCounts((2,), prompt=(1, 1, 2)), guessed=(4,))])
    expected = torch.log_softmax(torch.tensor([2.0, -2.0, 1.25, 0.5, 1.0]), -1)
    assert dict(draw.top) == pytest.approx(dict(enumerate(expected.tolist())), abs=1e-6)
    assert draw.token == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_end_is_drawn_too_early_and_log_probabilities_stay_those_of_the_whole(temperature):
    logits = torch.zeros(1, 40)
    logits[0, 35], logits[0, 3] = 9.0, 5.0
    params = SamplingParams(temperature=temperature, min_tokens=2, stop_token_ids=(35, 31, 99))
    early = [sample(logits.clone(), [Row(params, seed, 1)])[0] for seed in range(20)]
    assert all(draw.token not in (35, 31) for draw in early)
    whole = torch.log_softmax(logits[0], -1)
    assert all(draw.logprob == pytest.approx(float(whole[draw.token]), abs=1e-5) for draw in early)
    assert not any(draw.forced for draw in early)
    assert sample(logits.clone(), [Row(params, 0, 2)])[0].token == 35


def test_top_log_probabilities_come_best_first_without_tokens_of_no_probability():
    logits = torch.tensor([[0.0, 3.0, 1.0, -torch.inf]])
    rows = [Row(SamplingParams(top_logprobs=count), count) for count in (2, 0, 4)]
    first, second, whole = sample(logits.repeat(3, 1), rows)
    assert [token for token, _ in whole.top] == [1, 2, 0]
    assert [token for token, _ in first.top] == [1, 2]
    assert second.top == ()


def _mask(*ids, vocabulary):
    bits = np.zeros(-(-vocabulary // 32) * 32, np.uint8)
    bits[list(ids)] = 1
    return fit_mask(np.packbits(bits, bitorder="little").view(np.int32), vocabulary)


def _masked_rows(count, ids, vocabulary, **params):
    mask = _mask(*ids, vocabulary=vocabulary)
    return [Row(SamplingParams(**params), seed, allowed=mask) for seed in range(count)]


def test_allowed_tokens_are_drawn_by_their_odds_however_unlikely_they_are():
    logits = torch.full((2000, 200), 0.0)
    logits[:, 150] = 400.0  # all others have probability 0 in float32
    logits[:, 160] = 1.0986  # three times as likely as 10
    draws = sample(logits, _masked_rows(2000, [10, 160], 200, top_logprobs=1))
    assert np.mean([draw.token == 160 for draw in draws]) == pytest.approx(0.75, abs=0.04)
    assert {draw.token for draw in draws} == {10, 160}
    assert all(draw.logprob < -390 for draw in draws)
    assert {draw.top[0][0] for draw in draws} == {150}


def test_truncation_and_greed_choose_among_the_allowed_tokens():
    logits = torch.log(torch.tensor([[0.9, 0.06, 0.03, 0.01]]))
    draws = sample(logits.repeat(500, 1), _masked_rows(500, [1, 2, 3], 4, top_k=2))
    assert {draw.token for draw in draws} == {1, 2}
    (draw,) = sample(logits.clone(), _masked_rows(1, [2, 3], 4, temperature=0.0))
    assert draw.token == 2


def test_rows_beside_masked_ones_are_drawn_bit_by_bit_as_without_them():
    logits = torch.randn(9, 500, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(temperature=t, top_p=p, top_logprobs=2) for t in (0.0, 0.7, 1.0) for p in (1.0, 0.9, 0.5)]
    free = [Row(one, seed) for seed, one in enumerate(params)]
    mask = _mask(*range(0, 500, 7), vocabulary=500)
    mixed = [Row(row.sampling, row.seed, allowed=mask if i % 2 else None) for i, row in enumerate(free)]
    expected, found = sample(logits.clone(), free), sample(logits.clone(), mixed)
    assert found[::2] == expected[::2]
    assert all(draw.token % 7 == 0 for draw in found[1::2])


def test_a_mask_that_allows_nothing_the_model_has_is_an_error():
    wide = np.zeros(4, np.int32)
    wide[3] = 1
    with pytest.raises(ConstraintError):
        fit_mask(wide, 70)
    assert fit_mask(np.array([-1, -1, -1, -1], np.int32), 70).tolist() == [-1, -1, 63]
    assert fit_mask(np.array([-1], np.int32), 70).tolist() == [-1, 0, 0]


def test_biases_and_penalties_of_many_rows_are_those_of_each_row_alone():
    rng = np.random.default_rng(0)
    logits = torch.randn(12, 300, generator=torch.Generator().manual_seed(0))
    rows, expected = [], logits.clone()
    for i in range(12):
        bias = {int(id_): float(rng.normal()) for id_ in rng.choice(300, 40, replace=False)} if i % 2 else {}
        sampled = rng.integers(0, 60, 100).tolist() if i % 3 else []
        presence, frequency = (0.5, 0.25) if i % 3 else (0.0, 0.0)
        penalties = {"presence_penalty": presence, "frequency_penalty": frequency}
        params = SamplingParams(logit_bias=bias, top_logprobs=300, **penalties)
        rows.append(Row(params, i, len(sampled), TokenCounts(sampled) if i % 3 else None))
        for id_, value in bias.items():
            expected[i, id_] += value
        for id_ in set(sampled):
            expected[i, id_] -= presence + frequency * sampled.count(id_)
    found = torch.zeros(12, 300)
    for i, draw in enumerate(sample(logits.clone(), rows)):
        for id_, value in draw.top:
            found[i, id_] = value
    assert torch.allclose(found, torch.log_softmax(expected, -1), atol=1e-5)


@pytest.mark.parametrize("temperature", [-0.0, 5e-324, 9e-6])
def test_a_temperature_next_to_nothing_is_greedy(temperature):
    logits = torch.randn(4, 200, generator=torch.Generator().manual_seed(2)) * 30
    cold = [Row(SamplingParams(temperature=temperature, top_logprobs=3), seed) for seed in range(4)]
    greedy = [Row(SamplingParams(temperature=0.0, top_logprobs=3), seed) for seed in range(4)]
    assert sample(logits.clone(), cold) == sample(logits.clone(), greedy)
    assert str(cold[0].sampling.temperature) == "0.0"


@pytest.mark.parametrize("temperature", [1e-5, 1e300])
@pytest.mark.parametrize("cut", [{}, {"top_p": 5e-324}, {"min_p": 1.0}, {"min_p": 5e-324}, {"top_k": 10**30}])
def test_extreme_numbers_draw_tokens_with_finite_log_probabilities(temperature, cut):
    logits = torch.randn(8, 200, generator=torch.Generator().manual_seed(3)) * 1000
    for draw in sample(
        logits, [Row(SamplingParams(temperature=temperature, top_logprobs=5, **cut), i) for i in range(8)]
    ):
        assert 0 <= draw.token < 200
        assert np.isfinite([draw.logprob, *(value for _, value in draw.top)]).all()


@pytest.mark.parametrize("name", ["temperature", "presence_penalty", "frequency_penalty", "logit_bias"])
def test_what_is_no_number_is_refused(name):
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=name):
            SamplingParams(**{name: {1: value} if name == "logit_bias" else value})


class HostTraffic(TorchFunctionMode):
    """Counts what would wait for a GPU if the logits lay on one, by the name of the call."""

    READS = frozenset({"cpu", "tolist", "item", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__"})
    COPIES = frozenset({"tensor", "as_tensor", "from_numpy", "to", "cuda", "pin_memory", "__array__"})

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.staged = 0
        self._copying = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = func.__name__
        on_host = isinstance(args[0], torch.Tensor) and getattr(args[0], "is_read", False) if args else False
        if not self._copying and not on_host:
            self.reads[name] += name in self.READS
            self.copies[name] += name in self.COPIES
            if name in ("__getitem__", "__setitem__"):
                index = args[1] if isinstance(args[1], tuple) else (args[1],)
                self.copies[name] += any(isinstance(part, list | np.ndarray) for part in index)
        out = func(*args, **(kwargs or {}))
        if name == "cpu":
            out = out.clone()
            out.is_read = True
        return out

    def on_device(self, array, device):
        self._copying, self.staged = True, self.staged + 1
        try:
            return torch.from_numpy(np.array(array)).to(device)
        finally:
            self._copying = False


def _every_kind_of_row(vocabulary):
    allowed = np.full(-(-vocabulary // 32), 0x55, np.int32)
    return [
        Row(SamplingParams(), 0),
        Row(SamplingParams(temperature=0.0), 1),
        Row(SamplingParams(temperature=0.7, top_p=0.9, top_k=50, min_p=0.01), 2),
        Row(SamplingParams(top_logprobs=3, logit_bias={5: 2.0}), 3),
        Row(SamplingParams(presence_penalty=0.5), 4, counts=TokenCounts([7, 7, 9])),
        Row(SamplingParams(), 5, allowed=fit_mask(allowed, vocabulary)),
    ]


def test_a_gpu_is_waited_for_once_whatever_the_rows_ask_for(monkeypatch):
    monkeypatch.setattr(sampler.kernels, "can_draw", lambda logits: False)
    logits = torch.randn(8, 500, generator=torch.Generator().manual_seed(0))
    rows, places = _every_kind_of_row(500), [1, 0, 3, 5, 7, 6]
    expected = sample(logits.clone(), rows, places)
    with HostTraffic() as traffic:
        monkeypatch.setattr(sampler, "on_device", traffic.on_device)
        assert sample(logits.clone(), rows, places) == expected
    assert +traffic.reads == Counter(cpu=1)
    assert +traffic.copies == Counter()
    assert traffic.staged > 5
