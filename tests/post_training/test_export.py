"""Exporting: the spelling of ms-swift, adapters for others, GGUF through a converter."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from gguf import GGUFReader
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from command_line import invoke
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.policy.model_files import EMBEDDED_FOLDER
from mini_agentic_rl.post_training import ExportSettings, export
from mini_agentic_rl.post_training.exporting import find_converter
from mini_agentic_rl.post_training.merging import portable_name
from post_training.samples import save_adapter

CONVERTER = '''
"""Writes a small GGUF file, as llama.cpp's converter does, to where it is told."""
import argparse, json, sys
from pathlib import Path
import numpy as np
from gguf import GGUFWriter

parser = argparse.ArgumentParser()
parser.add_argument("model", type=Path)
parser.add_argument("--outfile")
parser.add_argument("--outtype")
options = parser.parse_args()
config = json.loads((options.model / "config.json").read_text())
assert (options.model / "tokenizer.json").is_file() and not (options.model / "adapter_config.json").exists()
if options.outtype == "q8_0":
    print("loading", file=sys.stderr)
    sys.exit("NotImplementedError: no q8_0 here")
writer = GGUFWriter(options.outfile.format(ftype=options.outtype.upper()), config["model_type"])
writer.add_tensor("token_embd.weight", np.zeros((4, 8), np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
'''


@pytest.fixture(scope="module")
def adapter(tiny_folder, tmp_path_factory):
    """A LoRA adapter, with what a run leaves around it."""
    folder = save_adapter(tmp_path_factory.mktemp("adapters") / "one", tiny_folder)
    (folder / "summary.json").write_text("{}")
    (folder / "checkpoints").mkdir()
    return folder


@pytest.fixture
def converter(tmp_path):
    path = tmp_path / "llama.cpp" / "convert_hf_to_gguf.py"
    path.parent.mkdir()
    path.write_text(CONVERTER)
    return path


def _settings(adapter=None, **changes):
    return ExportSettings(**{"adapters": adapter, "device": "cpu", "check_tokens": 4, **changes})


def test_the_spelling_of_ms_swift_merges(adapter, tiny_folder, tmp_path):
    arguments = ["--model", tiny_folder, "--adapters", str(adapter), "--merge-lora", "true", "--device", "cpu"]
    shown = invoke("export", *arguments, "--output-dir", tmp_path / "merged")
    assert shown.exit_code == 0, shown.output
    assert "greedy tokens the same" in shown.stdout
    assert f"wrote {tmp_path / 'merged'}" in shown.stdout
    AutoModelForCausalLM.from_pretrained(tmp_path / "merged")


def test_an_exported_adapter_loads_in_plain_peft_without_the_run_around_it(adapter, tiny_folder, tmp_path):
    options = {"merge_lora": "false", "base_name": "lab/tiny", "output_dir": tmp_path / "out"}
    summary = export(_settings(adapter, **options))
    folder = tmp_path / "out"
    assert {path.name for path in folder.iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    assert not {"summary.json", "checkpoints"} & {path.name for path in folder.iterdir()}
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "lab/tiny"
    ids = torch.tensor([list(range(20, 40))])
    with torch.no_grad():
        before, after = (
            PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_folder), path)(input_ids=ids).logits
            for path in (adapter, folder)
        )
    assert torch.equal(before, after)
    assert summary["rank"] == 4
    export(_settings(adapter, **options, dtype="bfloat16", overwrite=True))
    assert {weight.dtype for weight in load_file(folder / "adapter_model.safetensors").values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("base", "name"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
        ("/home/x/.cache/huggingface/hub/models--Qwen--Qwen3-0.6B/snapshots/ab12", "Qwen/Qwen3-0.6B"),
        (r"C:\Users\x\.cache\huggingface\hub\models--Qwen--Qwen3-0.6B\snapshots\ab12", "Qwen/Qwen3-0.6B"),
        (r"D:\models\mine", "mine"),
        (f"/home/x/.cache/mini-agentic-rl/models/{EMBEDDED_FOLDER}", EMBEDDED_FOLDER),
        ("./models/mine", "mine"),
        ("embedded", "embedded"),
    ],
)
def test_the_base_of_an_exported_adapter_has_a_name_that_travels(base, name):
    assert portable_name(base) == name


def test_the_converter_is_a_script_its_folder_or_a_program_on_the_path(converter, monkeypatch):
    command = [sys.executable, str(converter)]
    assert find_converter(converter) == find_converter(converter.parent) == command
    converter.chmod(0o755)
    monkeypatch.setenv("PATH", str(converter.parent), prepend=":")
    assert find_converter(None) == command


def test_a_merged_model_goes_through_the_converter(adapter, converter, tmp_path):
    settings = _settings(adapter, format="gguf", outtype="f16", converter=converter, output_dir=tmp_path / "out")
    summary = export(settings)
    assert summary["files"] == ["one-F16.gguf"]
    assert (summary["architecture"], summary["tensors"]) == ("llama", 1)
    assert summary["merged"]["check"]["tokens"] == 16
    assert len(GGUFReader(tmp_path / "out" / "one-F16.gguf").tensors) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"llama.cpp", "out"}


def test_a_whole_model_is_converted_and_a_converter_that_fails_is_an_error(
    adapter, converter, tiny_folder, tmp_path, monkeypatch
):
    gguf = {"format": "gguf", "output_dir": tmp_path / "x", "converter": converter}
    assert export(_settings(model=tiny_folder, outtype="f32", **gguf))["files"] == [
        f"{Path(tiny_folder).name}-F32.gguf"
    ]
    monkeypatch.setenv("PATH", str(tmp_path))
    wanted = {"format": "gguf", "output_dir": tmp_path / "out", "check": False}
    with pytest.raises(UserError, match=r"failed: NotImplementedError: no q8_0 here"):
        export(_settings(adapter, converter=converter, outtype="q8_0", **wanted))
    with pytest.raises(UserError, match=r"no convert_hf_to_gguf.py on the PATH.*`converter`"):
        export(_settings(adapter, **wanted))
    with pytest.raises(UserError, match=r"converter: there is no convert_hf_to_gguf.py at "):
        export(_settings(adapter, converter=tmp_path / "elsewhere", **wanted))
    assert not (tmp_path / "out").exists()


def test_options_that_contradict_each_other_are_refused():
    for arguments, message in (
        (["--merge-lora", "true", "--format", "adapter"], "contradict each other"),
        (["--merge-lora", "maybe"], "--merge-lora maybe"),
        ([], "--adapters: give "),
        (["--format", "adapter"], "--adapters: give "),
        (["--format", "gguf"], "--format: gguf needs llama.cpp's converter"),
    ):
        result = invoke("export", *arguments, PATH="/nowhere")
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
