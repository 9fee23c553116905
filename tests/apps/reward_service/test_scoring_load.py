"""Which models are served, how each reads its texts, and what is said of those that are none."""

from __future__ import annotations

import json

import pytest
from transformers import BertConfig, BertForSequenceClassification
from typer.testing import CliRunner

from apps.reward_service.scorers import alone, tiny_scorer
from gateway.small_tokenizer import small_tokenizer
from mini_agentic_rl.apps.reward_service import load_scorer
from mini_agentic_rl.cli import app
from mini_agentic_rl.gateway.render.renderer import ChatRenderer
from mini_agentic_rl.http import BadRequestError
from mini_agentic_rl.policy.errors import ModelNotFoundError, PolicyError
from mini_agentic_rl.post_training.models import load_reward_model
from mini_agentic_rl.post_training.rows import prompt_and_answer
from post_training.samples import save_adapter
from tiny import tiny_tokenizer

MESSAGES = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Three."}]


def _saved(folder, model, tokenizer=None, *, trained_here=False):
    model.save_pretrained(folder)
    (tokenizer or tiny_tokenizer()).save_pretrained(folder)
    if trained_here:
        (folder / "run.json").write_text("{}", encoding="utf-8")
    return str(folder)


def test_a_model_trained_here_scores_the_answer_up_to_the_token_that_ends_it(tmp_path, tiny_folder):
    path = str(save_adapter(tmp_path / "run", tiny_folder, scores=True))
    expected_model, tokenizer = load_reward_model(path, dtype="float32")
    prompt, answer = prompt_and_answer(ChatRenderer(tokenizer), {"prompt": MESSAGES[:1], "x": MESSAGES[1:]}, "x")
    scorer = load_scorer(path, dtype="float32")
    text = scorer.renderer.render(MESSAGES)
    assert list(text.ids) == prompt + answer
    assert scorer.shares_prefixes
    assert scorer.scores([text]) == pytest.approx([alone(expected_model, text.ids)], abs=1e-4)
    with pytest.raises(BadRequestError, match="the last message must be the assistant's"):
        scorer.renderer.render(MESSAGES[:1])


def test_an_adapter_in_sixteen_bits_stays_beside_its_base(tmp_path, tiny_folder):
    path = str(save_adapter(tmp_path / "run", tiny_folder, scores=True))
    exact, rounded = load_scorer(path, dtype="float32"), load_scorer(path, dtype="bfloat16")
    text = exact.renderer.render(MESSAGES)
    assert rounded.scores([text]) == pytest.approx(exact.scores([text]), rel=0.1, abs=0.1)


def test_a_model_of_others_scores_all_that_the_template_writes(tmp_path):
    scorer = load_scorer(_saved(tmp_path / "of-others", tiny_scorer()))
    whole = tiny_tokenizer().apply_chat_template(MESSAGES, tokenize=True, return_dict=False)
    assert list(scorer.renderer.render(MESSAGES).ids) == whole
    assert tiny_tokenizer().decode(whole).endswith("<|im_end|>\n")


def test_an_encoder_reads_prompt_and_response_as_a_pair(tmp_path):
    tokenizer = small_tokenizer(template=None)
    model = tiny_scorer(BertForSequenceClassification, BertConfig, pad_token_id=1)
    scorer = load_scorer(_saved(tmp_path / "encoder", model, tokenizer))
    text = scorer.renderer.render(MESSAGES)
    assert list(text.ids) == tokenizer("How many?", "Three.")["input_ids"]
    assert not scorer.shares_prefixes
    with pytest.raises(BadRequestError, match="no chat template"):
        scorer.renderer.render([{"role": "system", "content": "Count."}, *MESSAGES])


def test_tools_that_the_prompt_offers_are_read(tmp_path):
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    scorer = load_scorer(_saved(tmp_path / "run", tiny_scorer(), trained_here=True))
    with_tool, without = (scorer.renderer.render(MESSAGES, tools) for tools in ([tool], None))
    assert len(with_tool.ids) > len(without.ids)


def test_what_is_no_reward_model_is_refused_by_name(tmp_path, tiny_folder):
    two = _saved(tmp_path / "two", tiny_scorer(num_labels=2))
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text(json.dumps({"model_type": "unheard-of"}), encoding="utf-8")
    for model, kind, said in (
        (tiny_folder, PolicyError, "LlamaForCausalLM, not a reward model.*mini-agentic-rl reward"),
        (two, PolicyError, "a classifier with 2 labels"),
        (str(broken), ModelNotFoundError, "cannot be loaded"),
        ("./nowhere", ModelNotFoundError, "no model folder"),
        ("", PolicyError, "model: give "),
    ):
        with pytest.raises(kind, match=said):
            load_scorer(model)


def test_the_command_tells_a_mistake_in_one_line(tiny_folder, tmp_path):
    for options, said in (
        (["--model", tiny_folder], "not a reward model"),
        ([], "--model: give "),
        (["--port", "70000"], "--port 70000"),
        (["--model", "x", "--api-key-file", str(tmp_path / "none")], "--api-key-file"),
        (["--truncation", "middle"], "--truncation middle"),
    ):
        result = CliRunner().invoke(app, ["score-server", *options])
        assert result.exit_code == 2
        assert result.stderr.startswith("error: ")
        assert said in result.stderr
        assert result.stderr.count("\n") == 1
