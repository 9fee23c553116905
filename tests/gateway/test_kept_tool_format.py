"""A trained model is served in the tool format that it was trained in: the tokenizer beside its weights has it."""

from __future__ import annotations

from mini_agentic_rl.commands import TrainConfig, train_job
from mini_agentic_rl.gateway import ChatRenderer, ServedPolicy, load_tokenizer

RUN = {"sft_examples": 2, "total_steps": 1, "eval_size": 1, "tasks_per_step": 1, "samples_per_prompt": 2}
RUN |= {"max_new_tokens": 4, "n_runners": 4, "console": False, "transfer_size": 0}


def test_the_adapters_of_a_run_are_served_in_its_tool_format(tiny_folder, tmp_path) -> None:
    train_job(TrainConfig(model=tiny_folder, output_dir=tmp_path, tool_format="compact", checkpoint_every=1, **RUN))
    checkpoint = tmp_path / "checkpoints" / "step_1" / "adapter"
    assert ChatRenderer(load_tokenizer(tiny_folder, adapter=checkpoint)).tool_format.name == "pythonic"
    served = ServedPolicy.load(tiny_folder, adapter=tmp_path / "adapter")
    try:
        served.serve()
        assert served.server is not None
        assert served.server.renderer.tool_format.name == "pythonic"
    finally:
        served.close()
    assert ChatRenderer(load_tokenizer(str(tmp_path))).tool_format.name == "pythonic"
