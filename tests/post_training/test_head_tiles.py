"""The head of TRL's trainers, read in small tiles."""

from __future__ import annotations

import pytest
import torch
from trl.kernels import chunked_logprob
from trl.trainer import utils

from mini_agentic_rl.post_training.head_tiles import answers_in_tiles
from tiny import tiny_model

CPU = torch.device("cpu")


def _read(model, ids, labels):
    model.zero_grad()
    output = model(input_ids=ids, labels=labels, fused_lm_head=True)
    output.loss.backward()
    gradient = model.model.embed_tokens.weight.grad.clone()
    return [output.loss.detach(), output.log_probs.detach(), output.entropy.detach(), gradient]


def test_a_batch_without_a_label_gives_a_gradient_of_zero():
    model = tiny_model(300)
    utils.add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    ids = torch.randint(300, (2, 5))
    with answers_in_tiles(CPU, 64):
        loss, *_, gradient = _read(model, ids, torch.full_like(ids, -100))
    assert loss == 0
    assert not gradient.any()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_trl_had_before_is_there_again(device):
    before = (utils._CHUNKED_LOGPROB_CHUNK_SIZE, utils._use_triton, chunked_logprob.TOKEN_CHUNK_SIZE)
    with answers_in_tiles(torch.device(device), 576):
        inside = (utils._CHUNKED_LOGPROB_CHUNK_SIZE, utils._use_triton, chunked_logprob.TOKEN_CHUNK_SIZE)
    assert (inside == before) == (device == "cuda")
    assert before == (utils._CHUNKED_LOGPROB_CHUNK_SIZE, utils._use_triton, chunked_logprob.TOKEN_CHUNK_SIZE)
