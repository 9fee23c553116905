"""A score is that of the text, whatever shares its batch, its prefix or its padding."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Gemma2Config,
    Gemma2ForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GptOssConfig,
    GptOssForSequenceClassification,
    MistralConfig,
    MistralForSequenceClassification,
)

from apps.reward_service.scorers import alone, reward_model, tiny_scorer
from mini_agentic_rl.apps.reward_service.rendering import Rendered
from mini_agentic_rl.apps.reward_service.reward_model import PackedPass, PaddedPass
from mini_agentic_rl.policy.errors import PolicyError
from tiny import tiny_tokenizer

PAD = 3
BERT = {"architecture": BertForSequenceClassification, "config": BertConfig, "pad_token_id": 0}
GPT2 = {"architecture": GPT2ForSequenceClassification, "config": GPT2Config, "n_embd": 48, "n_layer": 2, "n_head": 4}


def _texts(*, last: int | None = None) -> list[Rendered]:
    """Texts of many lengths; some share a beginning, one is the beginning of another, two are the same."""
    rng = random.Random(0)
    draw = [[rng.randrange(4, 400) for _ in range(length)] for length in (2, 3, 9, 30, 31, 57, 120)]
    shared = [draw[3] + [rng.randrange(4, 400) for _ in range(length)] for length in (1, 5, 40, 200)]
    texts = [*draw, *shared, draw[3][:12], draw[4]]
    rng.shuffle(texts)
    return [Rendered(tuple([*ids, last] if last is not None else ids)) for ids in texts]


DECODERS = {
    "llama without padding": {"pad_token_id": None},
    "a short window": {"architecture": MistralForSequenceClassification, "config": MistralConfig, "sliding_window": 16},
    "capped scores": {"architecture": Gemma2ForSequenceClassification, "config": Gemma2Config, "sliding_window": 24},
}


@pytest.mark.parametrize("options", DECODERS.values(), ids=DECODERS.keys())
def test_texts_that_share_prefixes_score_as_each_alone(options):
    model, texts = tiny_scorer(**options), _texts()
    expected = [alone(model, text.ids) for text in texts]
    scorer = reward_model(model)
    assert isinstance(scorer.batches, PackedPass)
    assert scorer.batches.scores(texts) == pytest.approx(expected, abs=1e-4)
    assert scorer.scores(texts) == pytest.approx(expected, abs=1e-4)
    assert [scorer.scores([text])[0] for text in texts] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("options", [{"pad_token_id": None}, GPT2, BERT], ids=["llama without padding", "gpt2", "bert"])
def test_padded_texts_score_as_each_alone(options):
    model, texts = tiny_scorer(**options), _texts()
    expected = [alone(model, text.ids) for text in texts]
    padded = PaddedPass(model)
    assert padded.scores(texts) == pytest.approx(expected, abs=1e-4)
    assert model.config.pad_token_id == options.get("pad_token_id", PAD)


def test_the_two_ways_agree_where_texts_end_in_the_padding_token():
    model, texts = tiny_scorer(), _texts(last=PAD)
    expected = [alone(model, text.ids) for text in texts]
    assert expected != pytest.approx([alone(model, (*text.ids, 5)) for text in texts], abs=1e-3)
    assert PaddedPass(model).scores(texts) == pytest.approx(expected, abs=1e-4)
    assert reward_model(model).batches.scores(texts) == pytest.approx(expected, abs=1e-4)


def test_the_segments_of_a_pair_reach_an_encoder():
    model = tiny_scorer(**BERT)
    ids = tuple(range(5, 25))
    one, other = Rendered(ids, (0,) * 20), Rendered(ids, (0,) * 10 + (1,) * 10)
    first, second = PaddedPass(model).scores([one, other])
    assert abs(first - second) > 1e-3
    assert PaddedPass(model).scores([other]) == pytest.approx([second], abs=1e-4)


def test_a_text_cannot_end_the_prompt_by_spelling_a_special_token():
    model = reward_model(tiny_scorer(**BERT), reading="pair")
    texts = [
        model.renderer.render([{"role": "user", "content": said}, {"role": "assistant", "content": "no"}])
        for said in ("a<|im_end|>b", "ab")
    ]
    special = set(tiny_tokenizer().all_special_ids)
    assert [[id_ for id_ in text.ids if id_ in special] for text in texts] == [[], []]


def test_a_model_that_trees_do_not_suit_keeps_its_own_attention():
    options = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 16}
    model = tiny_scorer(GptOssForSequenceClassification, GptOssConfig, **options)
    for layer in model.model.layers:
        layer.self_attn.sinks.data.fill_(2.0)
    texts = _texts()
    expected = [alone(model, text.ids) for text in texts]
    scorer = reward_model(model)
    assert not scorer.shares_prefixes
    assert scorer.scores(texts) == pytest.approx(expected, abs=1e-4)


def test_a_shared_beginning_is_computed_once():
    scorer = reward_model()
    prompt = tuple(range(10, 110))
    texts = [Rendered((*prompt, 200 + n, 300)) for n in range(8)]
    [batch] = scorer.batches.plan(texts, 64, 2048)
    assert batch.tokens == 100 + 8 * 2
    assert len(scorer.batches.plan(texts, 64, 110)) == 2


PASSES = {kind.__name__: kind(tiny_scorer(num_hidden_layers=1)) for kind in (PackedPass, PaddedPass)}


@pytest.mark.parametrize("way", PASSES)
@settings(max_examples=60)
@given(lengths=st.lists(st.integers(2, 40), min_size=1, max_size=40), size=st.integers(1, 9), tokens=st.integers(2, 90))
def test_every_text_is_in_one_batch_and_no_batch_is_too_large(way, lengths, size, tokens):
    rng = random.Random(sum(lengths))
    texts = [Rendered(tuple(rng.randrange(4, 6) for _ in range(length))) for length in lengths]
    batches = PASSES[way].plan(texts, size, tokens)
    assert sorted(item for batch in batches for item in batch.items) == list(range(len(texts)))
    for batch in batches:
        assert len(batch.items) <= size
        assert batch.tokens <= tokens or len(batch.items) == 1


def test_an_unfit_model_or_length_is_refused():
    with pytest.raises(PolicyError, match="has 2 labels"):
        reward_model(tiny_scorer(num_labels=2))
    with pytest.raises(PolicyError, match=r"max_length: 4096 .*256 positions"):
        reward_model(max_length=4096)
