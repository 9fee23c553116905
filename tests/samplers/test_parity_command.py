"""`parity` by hand: numbers where a server fits, one line where it does not."""

from __future__ import annotations

import copy
import json

import pytest
from rich.console import Console

from mini_agentic_rl.commands import ParitySettings, parity_job
from mini_agentic_rl.commands.parity import show_parity
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy import LoraSettings
from samplers.vllm_wire import VllmWireServer
from tiny import tiny_model, tiny_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = tiny_tokenizer()
    where = tmp_path_factory.mktemp("model")
    model = tiny_model(vocabulary=len(tokenizer))
    model.save_pretrained(where)
    tokenizer.save_pretrained(where)
    server = VllmWireServer(copy.deepcopy(model), lora=LoraSettings())
    yield where, server
    server.close()


def settings(where, server, tmp_path):
    return ParitySettings(
        model=str(where), device="cpu", dtype="float32", sampler_url=[server.url], sampler_folder=tmp_path / "w"
    )


def test_a_server_that_fits_is_told_with_its_differences(folder, tmp_path):
    where, server = folder
    server.faults.max_rank = 64
    found = parity_job(settings(where, server, tmp_path))
    json.dumps(found)
    ((url, told),) = found["servers"].items()
    assert url == server.url
    assert told["base"]["difference"] < 1e-4
    assert told["adapter"]["tokens"] == 64
    console = Console(record=True, width=120)
    show_parity(console, found)
    assert "they sample what is learnt" in console.export_text()
    assert server.loaded == {}
    assert not list((tmp_path / "w").iterdir())


def test_a_server_that_does_not_fit_is_one_line(folder, tmp_path):
    where, server = folder
    server.faults.raw_logprobs = True
    with pytest.raises(UserError, match="processed_logprobs"):
        parity_job(settings(where, server, tmp_path))
    server.faults.raw_logprobs = False
