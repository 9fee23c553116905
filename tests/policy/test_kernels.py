"""What is computed in C++ is what torch computes, to the rounding of bfloat16 or float32."""

from __future__ import annotations

import math
import shutil

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from mini_agentic_rl.policy import head, kernels, sampler
from mini_agentic_rl.policy import sampling_attention as sampling
from mini_agentic_rl.policy.attention import Scoring
from mini_agentic_rl.policy.fused_layers import fuse_layers
from mini_agentic_rl.policy.kernels import compiled
from mini_agentic_rl.policy.kv_cache import KVPool
from mini_agentic_rl.tokens import SamplingParams

CPU = torch.device("cpu")
USED = kernels.usable(torch.bfloat16, CPU)
needs_them = pytest.mark.skipif(not USED, reason="this machine lacks AVX512-BF16 or g++: the C++ is left unchecked")
needs_avx2 = pytest.mark.skipif(not kernels.usable(torch.float32, CPU), reason="this machine lacks AVX2 or g++")
in_both = pytest.mark.parametrize(
    "dtype", [pytest.param(torch.bfloat16, marks=needs_them), pytest.param(torch.float32, marks=needs_avx2)]
)


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact.double()).norm() / exact.double().norm())


def _with_gradients(function, tensors):
    """The outputs of a function and the gradients of its tensors, under fixed weights."""
    tensors = [tensor.clone().requires_grad_() for tensor in tensors]
    out = function(*tensors)
    weights = torch.sin(torch.arange(out.numel(), dtype=torch.float64)).view(out.shape).to(out.dtype)
    (out * weights).sum().backward()
    return [out.detach(), *(tensor.grad for tensor in tensors)]


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x if x.dtype == torch.float64 else x.float()
    return weight.to(x.dtype) * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


@in_both
@pytest.mark.parametrize("tokens", [1, 130])
def test_what_stands_between_products_is_torchs_and_its_gradients_as_exact(tokens, dtype):
    torch.manual_seed(0)
    weight = torch.randn(64).to(dtype)
    angles = [torch.randn(tokens, 32).to(dtype) for _ in range(2)]

    def turned(x: Tensor) -> Tensor:
        cos, sin = (one[None].to(x.dtype) for one in angles)
        return apply_rotary_pos_emb(x[None], x[None], cos, sin)[0][0]

    for ours, theirs, shapes in (
        (lambda x: kernels.rms_norm(x, weight, 1e-5), lambda x: _norm(x, weight), [(1, tokens, 64)]),
        (kernels.silu_product, lambda g, u: torch.nn.functional.silu(g) * u, [(1, tokens, 96), (1, tokens, 96)]),
        (lambda x: kernels.rotated(x, *angles), turned, [(3, tokens, 32)]),
    ):
        inputs = [torch.randn(shape).to(dtype) for shape in shapes]
        found, rounded = _with_gradients(ours, inputs), _with_gradients(theirs, inputs)
        exact = _with_gradients(theirs, [tensor.double() for tensor in inputs])
        for one, other, true in zip(found, rounded, exact, strict=True):
            assert _error(one, true) < 1.1 * _error(other, true) + (1e-4 if dtype == torch.bfloat16 else 1e-6)
        with torch.no_grad():
            assert torch.equal(ours(*inputs), found[0])


def _adapted(outputs: int, inputs: int, rank: int, bias: bool, dtype: torch.dtype) -> kernels.AdaptedLinear:
    weight, a, b = (torch.randn(shape).to(dtype) for shape in ((outputs, inputs), (rank, inputs), (outputs, rank)))
    of_bias = torch.randn(outputs).to(dtype) if bias else None
    adapter = (a / inputs**0.5, b) if rank else ()
    return kernels.AdaptedLinear(weight / inputs**0.5, of_bias, *adapter)


@in_both
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 33, 130])
def test_few_rows_times_weights_as_they_lie_are_the_products_of_each_layer(rows, dtype):
    torch.manual_seed(0)
    shapes = [(72, 8, False), (24, 3, True), (8, 0, True), (8, 17, False)]
    if dtype == torch.bfloat16:
        shapes += [(12, 3, True), (4, 0, False)]
    layers = [_adapted(outputs, 96, rank, bias, dtype) for outputs, rank, bias in shapes]
    assert all(kernels.FewRows.takes(layer.weight_NK) for layer in layers)
    few = kernels.FewRows(layers)
    # Rows that lie apart, as those of one layer's outputs among others'.
    x = torch.randn(rows, 100).to(dtype)[:, :96]
    for layer, found in zip(layers, few(x), strict=True):
        exact = x.double() @ layer.weight_NK.double().T
        if layer.bias_N is not None:
            exact = exact + layer.bias_N.double()
        if layer.a_RK is not None:
            exact = exact + x.double() @ layer.a_RK.double().T @ layer.b_NR.double().T
        assert found.is_contiguous()
        assert _error(found, exact) < (2**-8 if dtype == torch.bfloat16 else 1e-6)


@needs_them
def test_weights_of_other_types_and_sizes_are_left_to_others():
    assert not kernels.FewRows.takes(torch.empty(8, 32, dtype=torch.float64))
    assert not kernels.FewRows.takes(torch.empty(4, 32))
    assert not kernels.FewRows.takes(torch.empty(8, 48, dtype=torch.bfloat16))
    assert not kernels.FewRows.takes(torch.empty(6, 32, dtype=torch.bfloat16))
    assert not kernels.FewRows.takes(torch.empty(32, 8, dtype=torch.bfloat16).T)


@in_both
@pytest.mark.parametrize("sharpness", [0.2, 8.0])
@pytest.mark.parametrize("block", [40, 1000])
def test_the_softmax_of_a_block_of_the_vocabulary_is_as_exact_as_torchs(sharpness, block, dtype, monkeypatch):
    monkeypatch.setattr(head, "VOCAB_BLOCK", block)
    torch.manual_seed(0)
    hidden = (torch.randn(9, 64) * sharpness).to(dtype)
    weight, scale = torch.randn(203, 64).to(dtype), torch.rand(9) + 0.5
    rows, tokens = torch.randint(9, (20,)), torch.randint(203, (20,))
    tokens[0] = (hidden @ weight.T)[rows[0]].argmax()

    def numbers(hidden: Tensor, weight: Tensor) -> list[Tensor]:
        hidden = hidden.clone().requires_grad_()
        logprobs, entropies = head.frozen_head_logprobs(hidden, weight, scale, rows, tokens)
        (logprobs * torch.sin(torch.arange(20.0))).sum().backward()
        return [logprobs.detach(), entropies.detach(), hidden.grad]

    found = numbers(hidden, weight)
    exact = numbers(hidden.double(), weight.double())
    monkeypatch.setattr(kernels, "usable", lambda *_: False)
    rounded = numbers(hidden, weight)
    for one, other, true in zip(found, rounded, exact, strict=True):
        assert _error(one, true) < 1.1 * _error(other, true) + 1e-5


@in_both
@pytest.mark.parametrize(
    "scoring", [Scoring(0.2, None, None), Scoring(0.2, 9, None), Scoring(0.2, None, 1.5), Scoring(0.2, 40, 1.5)]
)
@pytest.mark.parametrize(("heads", "key_heads", "size"), [(6, 2, 32), (4, 4, 64), (8, 1, 96)])
def test_attention_of_a_pass_is_that_of_each_row_over_what_it_sees(scoring, heads, key_heads, size, dtype, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(kernels.sampling, "_RUN_KEYS", 8)  # some runs are read in pieces
    pool = KVPool(1, 100, 16, key_heads, size, dtype, CPU)
    pool.allocate()
    pool.keys.normal_()
    pool.values.normal_()
    free = iter(torch.randperm(1600).split(1))

    def take(count: int) -> Tensor:
        return torch.cat([next(free) for _ in range(count)])

    chunks = [sampling.Chunk(0, 70, take(100)), sampling.Chunk(70, 71, take(1))]
    first, lengths = torch.tensor([20, 20, 33, 0]), torch.tensor([31, 22, 60, 5])
    shared = [sampling.SharedKeys(slice(0, 3), take(20), torch.arange(20))]
    shared.append(sampling.SharedKeys(slice(2, 3), take(13), torch.arange(20, 33)))
    own = torch.stack([take(27) for _ in range(4)])
    decode = sampling.DecodeTables(shared, own, first, lengths)
    new_slots = torch.cat([chunks[0].slots[30:], chunks[1].slots, own[torch.arange(4), lengths - first - 1], take(1)])
    # A twin of the first sequence takes copies of that one's keys into a slot of its own.
    sources = torch.tensor([*range(75), 71])
    q, k, v = (torch.randn(75, count, size).to(dtype).transpose(0, 1) for count in (heads, key_heads, key_heads))

    def attend() -> Tensor:
        return sampling.PagedTables(pool, new_slots, sources, chunks, decode).attend(0, q, k, v, scoring)

    found = attend()
    written = pool.keys[0, new_slots[-1]].clone()
    monkeypatch.setattr(kernels, "usable", lambda *_: False)
    expected = attend()
    assert torch.equal(written, k[:, 71].reshape(-1))
    assert torch.equal(pool.keys[0, new_slots[-1]], written)
    assert _error(found, expected) < (2**-6 if dtype == torch.bfloat16 else 1e-5)


@in_both
def test_a_prompt_longer_than_what_is_packed_at_once_sees_all_of_it(dtype, monkeypatch):
    torch.manual_seed(0)
    pool = KVPool(1, 100, 16, 1, 32, dtype, CPU)
    pool.allocate()
    slots = torch.randperm(1600)[:1300]
    q, k, v = (torch.randn(1300, count, 32).to(dtype).transpose(0, 1) for count in (2, 1, 1))
    chunk = sampling.Chunk(0, 1300, slots)

    def attend() -> Tensor:
        return sampling.PagedTables(pool, slots, None, [chunk], None).attend(0, q, k, v, Scoring(1.5, None, None))

    found = attend()
    monkeypatch.setattr(kernels, "usable", lambda *_: False)
    assert _error(found, attend()) < (2**-6 if dtype == torch.bfloat16 else 1e-5)


def _llama(**changes):
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    return {**shape, **heads, **changes}


@in_both
@pytest.mark.parametrize(
    ("config", "model", "fused"),
    [
        (LlamaConfig(**_llama()), LlamaForCausalLM, 9),
        (Qwen3Config(**_llama()), Qwen3ForCausalLM, 13),  # its norms of queries and keys as well
        (Gemma2Config(**_llama()), Gemma2ForCausalLM, 2),  # it has other norms, and another activation
    ],
)
def test_modules_compute_in_one_pass_where_they_are_what_we_compute(config, model, fused, dtype):
    torch.manual_seed(0)
    made = model(config).to(dtype).eval()
    tokens = torch.randint(50, (1, 20))
    with torch.no_grad():
        expected = made(tokens).logits
        assert len(fuse_layers(made)) == fused
        found = made(tokens).logits
    tolerance = 2**-5 if dtype == torch.bfloat16 else 1e-5
    assert torch.allclose(found, expected, rtol=tolerance, atol=tolerance)


@needs_them
def test_a_norm_that_is_trained_keeps_its_gradient():
    made = LlamaForCausalLM(LlamaConfig(**_llama())).bfloat16()
    fuse_layers(made)
    made(torch.randint(50, (1, 20))).logits.float().sum().backward()
    assert made.model.norm.weight.grad is not None


@needs_avx2
def test_the_library_is_compiled_once_and_one_beside_the_sources_needs_no_compiler(tmp_path, monkeypatch):
    dtype = torch.float32
    monkeypatch.setenv("MINI_AGENTIC_RL_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_SOURCES", ("head.cpp",))  # the other tests are of all, in the cache that is used
    times = set()
    for _ in range(2):
        assert compiled.library.__wrapped__(dtype) is not None
        (made,) = (tmp_path / "kernels").iterdir()
        times.add(made.stat().st_mtime_ns)
    assert len(times) == 1

    package = tmp_path / "package"
    package.mkdir()
    for path in (*compiled._HERE.glob("*.cpp"), *compiled._HERE.glob("*.h"), made):
        shutil.copy(path, package)
    monkeypatch.setattr(compiled, "_HERE", package)
    monkeypatch.setenv("MINI_AGENTIC_RL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert compiled.library.__wrapped__(dtype) is not None
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("changes", "logged"),
    [({"MINI_AGENTIC_RL_KERNELS": "torch"}, ""), ({"PATH": "/nowhere", "CXX": ""}, "no C++ compiler was found")],
)
def test_without_a_compiler_torch_computes(changes, logged, tmp_path, monkeypatch, caplog):
    for name, value in {"MINI_AGENTIC_RL_CACHE": str(tmp_path), **changes}.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level("INFO"):
        assert compiled.library.__wrapped__(torch.float32) is None
    assert logged in caplog.text or not kernels.usable(torch.float32, CPU)
    assert not any(tmp_path.iterdir())


@in_both
def test_blocks_of_trees_give_what_torch_gives(dtype):
    torch.manual_seed(0)
    inputs = [torch.randn(heads, 40, 32).to(dtype) for heads in (6, 2, 2)]
    context = tuple(torch.randn(2, 21, 32).to(dtype) for _ in range(2))
    # Two subtrees: tokens 0 to 24, of which 10 to 19 are a branch, and 25 to 39 below the context's first 8 tokens.
    end = np.array([25] * 10 + [20] * 10 + [25] * 5 + [40] * 15, np.int32)
    reads = kernels.TreeReads(np.array([[0, 25, 0, 25, 21], [25, 40, 25, 40, 8]], np.int64), end)
    row, own = torch.arange(40)[:, None], torch.arange(40)
    seen = (own <= row) & (row < torch.from_numpy(end)) & ((own >= 25) == (row >= 25))
    mask = torch.cat([torch.arange(21)[None] < torch.where(row < 25, 21, 8), seen], 1)

    def plain(q: Tensor, k: Tensor, v: Tensor, ck: Tensor, cv: Tensor) -> Tensor:
        keys, values = (torch.cat(both, 1).repeat_interleave(3, 0) for both in ((ck, k), (cv, v)))
        scores = (q @ keys.transpose(1, 2) * 0.3).masked_fill(~mask, -torch.inf)
        return (scores.softmax(-1) @ values).transpose(0, 1)

    found = _with_gradients(
        lambda q, k, v, ck, cv: kernels.tree_attention(q, k, v, (ck, cv), reads, 0.3), [*inputs, *context]
    )
    exact = _with_gradients(plain, [tensor.double() for tensor in (*inputs, *context)])
    for one, true in zip(found, exact, strict=True):
        assert _error(one, true) < (2**-7 if dtype == torch.bfloat16 else 1e-5)


def _asked(count: int, vocabulary: int) -> list[sampler.Row]:
    """Rows of all kinds: free and masked, greedy, and cut short so that torch draws them."""
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(count):
        params = [{"temperature": t} for t in (1.0, 0.6, 0.0, 1e30)] + [{"top_p": 0.9}, {"top_logprobs": 2}]
        bits = rng.random(-(-vocabulary // 32) * 32) < (0.5, 0.01, 2.0)[seed % 3]
        bits[0] = True
        words = np.packbits(bits, bitorder="little").view(np.int32)
        mask = sampler.fit_mask(words, vocabulary) if seed % 4 == 3 else None
        rows.append(sampler.Row(SamplingParams(**params[seed % 6]), seed, seed % 7, allowed=mask))
    return rows


@in_both
@pytest.mark.parametrize("vocabulary", [5, 128, 1000, 20_003])
def test_tokens_are_those_that_torch_draws(dtype, vocabulary, monkeypatch):
    rows = _asked(96, vocabulary)
    places = [number // 4 for number in range(96)]  # four of each history
    for spread in (0.1, 3.0, 40.0):
        generator = torch.Generator().manual_seed(1)
        logits = (torch.randn(24, vocabulary, generator=generator) * spread).to(dtype)
        logits[::5, 1::3] = -torch.inf
        with monkeypatch.context() as patch:
            found = sampler.sample(logits.clone(), rows, places)
            patch.setattr(kernels, "can_draw", lambda _: False)
            expected = sampler.sample(logits.clone(), rows, places)
        for one, other in zip(found, expected, strict=True):
            assert (one.token, one.forced, len(one.top)) == (other.token, other.forced, len(other.top))
            # torch rounds the log-sum-exp, which is as large as the largest logit, to float32.
            assert one.logprob == pytest.approx(other.logprob, rel=1e-6, abs=2**-22 * (10 + 10 * spread))


@in_both
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_that_is_no_distribution_has_no_log_probability(dtype, bad):
    logits = torch.randn(3, 1000).to(dtype)
    logits[1, 700] = bad
    logits[2] = -torch.inf
    draws = sampler.sample(logits, [sampler.Row(SamplingParams(), seed) for seed in range(3)])
    assert [math.isfinite(draw.logprob) for draw in draws] == [True, False, False]


@needs_avx2
def test_numbers_at_the_ends_of_their_range_draw_tokens_that_have_a_probability():
    logits = torch.full((64, 300), -torch.inf)
    logits[:, [0, 127, 128, 299]] = 0.0
    logits[:, 5] = -200.0  # no probability in float32
    draws = kernels.draw_tokens(logits, range(64), [1.0] * 64, [2**-54, 1 - 2**-53] * 32, [None] * 64)
    assert draws[0] == [0, 299] * 32
    assert draws[1] == pytest.approx([-math.log(4)] * 64)


@needs_avx2
def test_a_draw_from_what_is_not_there_is_refused():
    logits = torch.zeros(2, 64)
    with pytest.raises(ValueError, match="row is not there"):
        kernels.draw_tokens(logits, [2], [1.0], [0.5], [None])
    with pytest.raises(ValueError, match="shorter than the vocabulary"):
        kernels.draw_tokens(logits, [0], [1.0], [0.5], [np.full(1, -1, np.int32)])
