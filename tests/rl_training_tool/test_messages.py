"""What an agent is told speaks of its parameters."""

from __future__ import annotations

from mini_agentic_rl.errors import UserError
from mini_agentic_rl.rl_training_tool.messages import told


def test_settings_and_options_are_told_as_parameters():
    error = UserError("'nowhere' cannot be loaded, `full_finetune` or not", setting="model")
    assert told(error) == "model_name: 'nowhere' cannot be loaded, use_lora=false or not"
    assert told(UserError("--output-dir x is a file")) == "output_dir x is a file"
    assert told(ValueError("odd")) == "ValueError: odd"
