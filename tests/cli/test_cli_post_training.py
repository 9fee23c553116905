"""Commands of post-training follow each other by their folders."""

from __future__ import annotations

import json

from command_line import run

SMALL = (
    *("--dataset", "arithmetic", "--max-samples", "6", "--num-epochs", "1", "--batch-size", "4"),
    *("--device", "cpu", "--dtype", "float32", "--max-length", "900"),
)


def test_stages_follow_each_other_by_their_folders(tiny_folder, tmp_path):
    sft, dpo = tmp_path / "sft", tmp_path / "dpo"
    assert run("sft", "--model", tiny_folder, *SMALL, "--output-dir", sft)[0] == 0
    code, shown, told = run("dpo", "--model", sft, *SMALL, "--output-dir", dpo)
    assert code == 0, told
    assert shown.splitlines()[-3:] == [
        f"wrote {dpo}",
        f"to use what was trained: mini-agentic-rl chat --model {dpo}",
        f"to reinforce it:         mini-agentic-rl train --model {dpo} --sft-examples 0 --output-dir outputs/rl",
    ]
    code, printed, told = run(
        *("eval", "--model", dpo, "--size", "2", "--max-new-tokens", "4", "--device", "cpu", "--json")
    )
    assert code == 0, told
    assert json.loads(printed)["accuracy"][0]["count"] == 2
