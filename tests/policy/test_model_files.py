"""The folder of an adapter stands for its base with the adapter, wherever a model is asked for."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import LoraSettings, ModelNotFoundError, PolicyError, load_model, pull_embedded
from mini_agentic_rl.policy.load import resolve_model, save_weights
from mini_agentic_rl.policy.model_files import EMBEDDED_FOLDER, adapter_folder, base_model_of


@pytest.fixture(scope="module")
def adapter(tiny_folder, tmp_path_factory):
    """A saved adapter that does something."""
    model = load_model(tiny_folder, lora=LoraSettings(r=4), device="cpu", dtype="float32")
    torch.manual_seed(0)
    for parameter in model.trainable():
        parameter.data.normal_(0, 0.2)
    folder = tmp_path_factory.mktemp("run") / "adapter"
    save_weights(model, folder)
    return folder


def changed(adapter, folder, **settings):
    """A copy of the adapter with other settings."""
    shutil.copytree(adapter, folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **settings}))
    return folder


def same_weights(one, other):
    mine, yours = one.peft_model.state_dict(), other.peft_model.state_dict()
    return mine.keys() == yours.keys() and all(torch.equal(mine[name], yours[name]) for name in mine)


def test_it_is_its_base_with_that_adapter_to_go_on_with(tiny_folder, adapter):
    expected = load_model(tiny_folder, adapter=adapter, device="cpu", dtype="float32")
    assert resolve_model(str(adapter)) == tiny_folder
    for name in (str(adapter), str(adapter.parent)):  # itself, and the folder of the run that wrote it
        assert same_weights(load_model(name, lora=LoraSettings(), device="cpu", dtype="float32"), expected)


def test_several_adapters_start_from_it_unless_they_have_a_folder(adapter):
    model = load_model(str(adapter), adapters={"one": None, "two": None}, device="cpu", dtype="float32")
    for one, two in zip(model.trainable("one"), model.trainable("two"), strict=True):
        assert torch.equal(one, two)
        assert one.abs().sum() > 0


def test_the_embedded_model_is_found_from_any_users_cache(adapter, tmp_path):
    for name, folder in (("a", "/home/somebody/.cache/models/"), ("c", "C:\\Users\\somebody\\Cache\\models\\")):
        path = folder + EMBEDDED_FOLDER
        assert base_model_of(changed(adapter, tmp_path / name, base_model_name_or_path=path)) == "embedded"
    assert base_model_of(changed(adapter, tmp_path / "b", base_model_name_or_path="owner/model")) == "owner/model"


def test_a_path_of_windows_that_is_missing_is_not_looked_for_on_the_hub():
    with pytest.raises(ModelNotFoundError, match="no model folder at"):
        resolve_model(r"outputs\none")


@pytest.mark.parametrize(
    ("base", "kind", "error"),
    [
        ("/gone/model", ModelNotFoundError, r"adapter of '/gone/model'.*as `adapter`"),
        (None, PolicyError, "does not say which model"),
        ("itself", PolicyError, "trained on another adapter"),
    ],
)
def test_a_base_that_is_not_here_is_named(adapter, tmp_path, base, kind, error):
    name = str(adapter) if base == "itself" else base
    with pytest.raises(kind, match=error):
        resolve_model(str(changed(adapter, tmp_path / "a", base_model_name_or_path=name)))


def test_a_model_is_no_adapter(tiny_folder):
    assert adapter_folder(tiny_folder) is None
    assert adapter_folder("embedded") is None


def test_the_folder_of_a_run_that_trained_all_weights_is_the_model_in_it(tiny_folder, tmp_path):
    (tmp_path / "config.json").write_text('{"model": "embedded"}')  # of the run
    shutil.copytree(tiny_folder, tmp_path / "adapter")
    assert load_model(str(tmp_path), device="cpu").peft_model is None
    assert resolve_model(str(tmp_path)) == str(tmp_path / "adapter")


def test_loading_says_nothing_that_only_the_authors_of_libraries_can_act_on(tiny_folder, adapter, recwarn):
    load_model(tiny_folder, lora=LoraSettings(r=4), device="cpu", dtype="float32")
    load_model(tiny_folder, adapter=adapter, device="cpu", dtype="float32")
    assert [str(warning.message) for warning in recwarn if warning.category is FutureWarning] == []


SLOW = r"(.|\w)+!"
"""A pattern that takes Python's engine exponential time on a name that it does not match."""


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": SLOW},
        {"target_modules": r".*\.(q|k|v|o|gate|up|down)_proj"},
        {"exclude_modules": SLOW},
        {"layers_to_transform": [0], "layers_pattern": [SLOW]},
    ],
)
def test_the_layers_of_an_adapter_are_those_of_its_weights_whatever_its_patterns(
    tiny_folder, adapter, tmp_path, settings
):
    expected = load_model(tiny_folder, adapter=adapter, device="cpu", dtype="float32")
    folder = changed(adapter, tmp_path / "adapter", **settings)
    assert same_weights(load_model(tiny_folder, adapter=folder, device="cpu", dtype="float32"), expected)


@pytest.mark.parametrize(
    ("setting", "patterns"),
    [
        ("modules_to_save", [SLOW]),
        ("alpha_pattern", ["(a|a)" * 40]),
        ("rank_pattern", [".*" * 40]),
        ("rank_pattern", ["a?" * 40]),
        ("rank_pattern", [f"{'k' * number}*" for number in range(200)]),
    ],
)
def test_a_pattern_that_could_take_long_is_refused(tiny_folder, adapter, tmp_path, setting, patterns):
    value = patterns if setting == "modules_to_save" else dict.fromkeys(patterns, 4)
    folder = changed(adapter, tmp_path / "adapter", **{setting: value})
    with pytest.raises(UserError, match=f"`{setting}` has the pattern"):
        load_model(tiny_folder, adapter=folder, device="cpu", dtype="float32")


def test_names_and_simple_patterns_of_an_adapter_are_kept(tiny_folder, adapter, tmp_path):
    patterns = {r"layers.0.self_attn.q_proj": 4, r"layers\.\d+\.self_attn\.k_proj": 4, "^.*v_proj$": 4}
    folder = changed(adapter, tmp_path / "adapter", rank_pattern=patterns, alpha_pattern={"^.*q_proj": 3})
    model = load_model(tiny_folder, adapter=folder, device="cpu", dtype="float32")
    scaling = {
        name.rpartition(".")[2]: module.scaling["default"]
        for name, module in model.peft_model.named_modules()
        if "lora_A" in dict(module.named_children()) and "layers.0.self_attn" in name
    }
    usual = scaling["o_proj"]
    assert scaling == {"q_proj": 0.75, "k_proj": usual, "v_proj": usual, "o_proj": usual}


def test_a_cache_folder_that_cannot_be_made_is_named_with_its_variable(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINI_AGENTIC_RL_CACHE", str(tmp_path / "file"))
    with pytest.raises(PolicyError, match=r"file.*set MINI_AGENTIC_RL_CACHE to a folder"):
        pull_embedded()
