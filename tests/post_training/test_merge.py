"""Merging: the same model in one piece, or nothing at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from command_line import invoke
from mini_agentic_rl.apps.reward_service import load_scorer
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import AdapterMismatchError
from mini_agentic_rl.post_training import MergeSettings, merge, merging
from post_training.samples import pairs, save_adapter
from tiny import tiny_model, tiny_tokenizer

IDS = torch.tensor([list(range(20, 60))])


@pytest.fixture(scope="module")
def adapter(tiny_folder, tmp_path_factory):
    """A LoRA adapter of the tiny model that changes what it says."""
    return save_adapter(tmp_path_factory.mktemp("adapters") / "one", tiny_folder)


def _settings(adapter=None, **changes):
    return MergeSettings(**{"adapter": adapter, "device": "cpu", "check_tokens": 6, **changes})


@torch.no_grad()
def _logits(model):
    return model(input_ids=IDS).logits


def test_the_merged_model_is_base_and_adapter_in_plain_transformers(adapter, tiny_folder, tmp_path):
    summary = merge(_settings(adapter, output_dir=tmp_path / "merged"))
    base = AutoModelForCausalLM.from_pretrained(tiny_folder)
    expected = _logits(PeftModel.from_pretrained(base, adapter).eval())
    folder = tmp_path / "merged"
    assert torch.allclose(_logits(AutoModelForCausalLM.from_pretrained(folder)), expected, atol=1e-4)
    assert AutoTokenizer.from_pretrained(folder).chat_template == tiny_tokenizer().chat_template
    assert not {"adapter_config.json", "adapter_model.safetensors"} & {path.name for path in folder.iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]
    with torch.no_grad():
        assert not torch.allclose(_logits(AutoModelForCausalLM.from_pretrained(tiny_folder)), expected, atol=1e-1)
    check = summary["check"]
    assert (check["tokens"], check["tokens_equal"]) == (24, 24)
    assert check["max_logit_difference"] < 1e-3 < summary["adapter_effect"]
    assert summary["output_dir"] == str(tmp_path / "merged")
    json.dumps(summary)


def test_a_pattern_for_layers_costs_a_merge_no_time(adapter, tiny_folder, tmp_path):
    slow = save_adapter(tmp_path / "slow", tiny_folder)
    config = json.loads((slow / "adapter_config.json").read_text())
    (slow / "adapter_config.json").write_text(json.dumps({**config, "target_modules": r"(.|\w)+!"}))
    merge(_settings(adapter, output_dir=tmp_path / "expected", check=False))
    merge(_settings(slow, output_dir=tmp_path / "merged", check=False))
    expected, merged = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("expected", "merged"))
    assert torch.equal(_logits(merged), _logits(expected))


def test_a_reward_model_keeps_its_head_and_its_scores(tiny_folder, tmp_path):
    folder = save_adapter(tmp_path / "judge", tiny_folder, scores=True)
    summary = merge(_settings(folder, output_dir=tmp_path / "merged"))
    assert summary["reward_model"] is True
    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert merged.config.num_labels == 1
    before, after = (load_scorer(str(path), dtype="float32") for path in (folder, tmp_path / "merged"))
    text = before.renderer.render([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert after.renderer.reading == "answer"
    assert after.renderer.render([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]) == text
    assert after.scores([text]) == pytest.approx(before.scores([text]), abs=1e-4)


def test_the_rounding_of_a_reward_model_is_measured_on_answers(tiny_folder, tmp_path):
    folder = save_adapter(tmp_path / "judge", tiny_folder, scores=True)
    check = merge(_settings(folder, dtype="bfloat16", output_dir=tmp_path / "merged"))["check"]
    before, after = (load_scorer(str(path), dtype="float32") for path in (folder, tmp_path / "merged"))
    texts = [before.renderer.render(pair["prompt"] + pair["chosen"]) for pair in pairs()]
    differences = [abs(one - two) for one, two in zip(before.scores(texts), after.scores(texts), strict=True)]
    assert 0 < max(differences) < check["max_logit_difference"]


def test_sixteen_bit_weights_are_rounded_once_and_a_lost_adapter_is_logged(tiny_folder, tmp_path, caplog):
    idle = merge(_settings(save_adapter(tmp_path / "idle", tiny_folder, scale=0.0)))
    assert (idle["adapter_effect"], idle["output_dir"]) == (0.0, f"{tmp_path / 'idle'}-merged")
    assert "changes nothing" in caplog.text
    folder = save_adapter(tmp_path / "slight", tiny_folder, scale=1e-4)
    exact = AutoModelForCausalLM.from_pretrained(merge(_settings(folder, output_dir=tmp_path / "a"))["output_dir"])
    assert "keeps all of it" not in caplog.text
    assert merge(_settings(folder, dtype="bfloat16", output_dir=tmp_path / "b"))["dtype"] == "bfloat16"
    assert "`dtype=float32` keeps all of it" in caplog.text
    rounded = AutoModelForCausalLM.from_pretrained(tmp_path / "b", dtype="auto")
    for name, weight in rounded.state_dict().items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, exact.state_dict()[name].to(torch.bfloat16))


@pytest.mark.filterwarnings("ignore:.*tie_word_embeddings:UserWarning")
def test_a_head_that_was_trained_beside_the_embeddings_is_untied(tmp_path):
    model = tiny_model(len(tiny_tokenizer()))
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model.save_pretrained(tmp_path / "tied")
    tiny_tokenizer().save_pretrained(tmp_path / "tied")
    folder = save_adapter(tmp_path / "adapter", str(tmp_path / "tied"), modules_to_save=["lm_head"])
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "adapter_model.safetensors")
    head = next(name for name in weights if "lm_head" in name)
    save_file({**weights, head: weights[head] * 1.5}, folder / "adapter_model.safetensors", {"format": "pt"})
    summary = merge(_settings(folder, output_dir=tmp_path / "merged"))
    assert summary["check"]["tokens_equal"] == summary["check"]["tokens"]
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is False


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("merged", r"is not the same model: .* Nothing was written"),
        ("_save", "what was written is not the same model"),
    ],
)
def test_a_merged_model_that_differs_is_not_published(function, message, adapter, tmp_path, monkeypatch):
    real = getattr(merging, function)

    def wrong(model, *rest):
        merged = real(model) if function == "merged" else model
        merged.lm_head.weight.data[:50] *= 1.5
        return merged if function == "merged" else real(model, *rest)

    monkeypatch.setattr(merging, function, wrong)
    with pytest.raises(UserError, match=message):
        merge(_settings(adapter, output_dir=tmp_path / "merged"))
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten_unasked(adapter, tmp_path):
    target = tmp_path / "merged"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        merge(_settings(adapter, output_dir=target))
    with pytest.raises(UserError, match="holds no model that `overwrite` could replace"):
        merge(_settings(adapter, output_dir=target, overwrite=True))
    assert (target / "notes.txt").read_text() == "mine"
    (target / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds notes\.txt, which no export wrote"):
        merge(_settings(adapter, output_dir=target, overwrite=True))
    assert (target / "notes.txt").read_text() == "mine"
    (target / "notes.txt").unlink()
    (target / "old.safetensors").write_text("")
    merge(_settings(adapter, output_dir=target, overwrite=True, check=False))
    assert not (target / "old.safetensors").exists()


def test_what_is_no_adapter_or_does_not_fit_is_refused_by_name(adapter, tiny_folder, wide_folder, tmp_path):
    other = save_adapter(tmp_path / "other", wide_folder)
    for error, said, settings in (
        (UserError, "adapter: give ", _settings()),
        (UserError, r"no adapter .*is missing", _settings(tmp_path)),
        (UserError, "a whole model already", _settings(Path(tiny_folder))),
        (UserError, "is an adapter itself", _settings(adapter, model=str(other))),
        (AdapterMismatchError, "model: .* does not fit ", _settings(adapter, model=wide_folder)),
    ):
        with pytest.raises(error, match=said):
            merge(settings.model_copy(update={"output_dir": tmp_path / "out"}))
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:Found missing adapter keys:UserWarning")
def test_another_base_than_the_adapters_is_remarked_and_a_deeper_one_refused(adapter, tiny_folder, tmp_path, caplog):
    tiny_model(len(tiny_tokenizer()), seed=7).save_pretrained(tmp_path / "other")
    merge(_settings(adapter, model=str(tmp_path / "other"), output_dir=tmp_path / "out"))
    assert "was trained on" in caplog.text
    tiny_model(len(tiny_tokenizer()), layers=3).save_pretrained(tmp_path / "deep")
    everywhere = save_adapter(tmp_path / "adapter", tiny_folder, target_modules=["q_proj", "v_proj"])
    with pytest.raises(AdapterMismatchError, match="belong elsewhere"):
        merge(_settings(everywhere, model=str(tmp_path / "deep"), output_dir=tmp_path / "none"))


def test_the_command_prints_the_summary(adapter, tmp_path):
    arguments = ["merge", "--adapter", adapter, "--device", "cpu", "--check-tokens", "4"]
    printed = invoke(*arguments, "--output-dir", tmp_path / "a", "--json")
    assert json.loads(printed.stdout)["check"]["tokens"] == 16
    again = invoke(*arguments, "--output-dir", tmp_path / "a")
    assert again.exit_code == 2
    assert again.stderr.rstrip().endswith("or give --overwrite to replace it")
