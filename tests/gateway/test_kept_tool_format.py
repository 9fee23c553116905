"""A model is asked in the form of calls that it was trained in: the tokenizer beside its weights says which."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from mini_agentic_rl.commands import TrainConfig, train_job
from mini_agentic_rl.gateway import (
    ChatRenderer,
    ServedPolicy,
    keep_tool_format,
    load_tokenizer,
    save_kept_tokenizer,
)

from .small_tokenizer import CHATML_TOOLS, small_tokenizer

RUN = {"sft_examples": 2, "total_steps": 1, "eval_size": 1, "tasks_per_step": 1, "samples_per_prompt": 2}
RUN |= {"max_new_tokens": 4, "n_runners": 4, "console": False, "transfer_size": 0}


def test_compact_is_the_shortest_form_unless_the_template_writes_one() -> None:
    assert ChatRenderer(small_tokenizer(), tool_format="compact").tool_format.name == "pythonic"
    assert ChatRenderer(small_tokenizer(CHATML_TOOLS), tool_format="compact").tool_format.name == "hermes"
    assert ChatRenderer(small_tokenizer()).tool_format.name == "hermes"


def test_the_files_of_a_tokenizer_keep_the_form_and_what_is_asked_for_comes_before_it(tmp_path) -> None:
    tokenizer = small_tokenizer()
    keep_tool_format(tokenizer, "compact")
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert ChatRenderer(again).tool_format.name == "pythonic"
    assert ChatRenderer(again, tool_format="llama3").tool_format.name == "llama3"


def test_a_form_that_this_version_does_not_know_is_as_none() -> None:
    tokenizer = small_tokenizer()
    tokenizer.init_kwargs["tool_format"] = "of tomorrow"
    assert ChatRenderer(tokenizer).tool_format.name == "hermes"


def test_what_a_run_has_trained_is_served_in_its_form(tiny_folder, tmp_path) -> None:
    train_job(TrainConfig(model=tiny_folder, output_dir=tmp_path, tool_format="compact", checkpoint_every=1, **RUN))
    for adapter in (tmp_path / "adapter", tmp_path / "checkpoints" / "step_1" / "adapter"):
        served = ServedPolicy.load(tiny_folder, adapter=adapter)
        try:
            served.serve()
            assert served.server is not None
            assert served.server.renderer.tool_format.name == "pythonic"
        finally:
            served.close()
    assert ChatRenderer(load_tokenizer(str(tmp_path))).tool_format.name == "pythonic"


def test_only_a_tokenizer_with_a_form_is_saved_beside_the_weights(tmp_path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    tokenizer = small_tokenizer()
    save_kept_tokenizer(tokenizer, tmp_path)
    assert not (tmp_path / "adapter" / "tokenizer_config.json").exists()
    keep_tool_format(tokenizer, "compact")
    save_kept_tokenizer(tokenizer, tmp_path)
    assert (tmp_path / "adapter" / "tokenizer_config.json").is_file()


@pytest.mark.parametrize(
    ("given", "form"),
    [({}, "compact"), ({"agent": "sql"}, "compact"), ({"agent": "units"}, "compact"), ({"agent": "my:Agent"}, "auto")],
)
def test_agents_of_ours_are_trained_in_the_shortest_form_and_others_in_what_they_know(given, form: str) -> None:
    assert TrainConfig(**given).completed().loop.tool_format == form


@pytest.mark.parametrize("agent", ["math", "sql", "units"])
def test_an_adapter_that_is_trained_on_goes_on_in_the_form_it_was_taught(agent: str, tmp_path) -> None:
    """An agent that writes Hermes is not made to begin anew with compact calls because these are the default."""
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    for model in (tmp_path, tmp_path / "adapter"):
        assert TrainConfig(agent=agent, model=str(model)).completed().loop.tool_format == "auto"
        given = TrainConfig(agent=agent, model=str(model), tool_format="compact")
        assert given.completed().loop.tool_format == "compact"
