"""Keys that are read once for all sequences give what reading them for each would give."""

from __future__ import annotations

import pytest
import torch

from helpers import tiny_policy
from mini_agentic_rl.policy import EngineSettings
from mini_agentic_rl.policy.attention import Scoring
from mini_agentic_rl.policy.decode_attention import DecodeTables
from mini_agentic_rl.policy.kv_cache import KVPool
from mini_agentic_rl.policy.scheduler import RunningSequence
from mini_agentic_rl.policy.step_batch import pack_step
from mini_agentic_rl.tokens import SamplingParams, TokenRequest

LENGTHS = torch.tensor([21, 14, 17])


@pytest.fixture
def pool() -> KVPool:
    torch.manual_seed(0)
    made = KVPool(1, 16, 4, 2, 8, torch.float32, torch.device("cpu"))
    made.keys.normal_()
    made.values.normal_()
    return made


@pytest.mark.parametrize("shared", [0, 4, 12])
@pytest.mark.parametrize(
    "scoring", [Scoring(0.3, None, None), Scoring(0.3, 9, None), Scoring(0.3, None, 1.5), Scoring(0.3, 5, 1.5)]
)
def test_shared_keys_give_the_attention_of_each_sequence_alone(pool, shared, scoring):
    slots = torch.stack([torch.randperm(64)[:21] for _ in LENGTHS])
    slots[:, :shared] = slots[0, :shared]
    q = torch.randn(len(LENGTHS), 2, 3, 8)
    together = DecodeTables(slots[0, :shared], slots[:, shared:], LENGTHS).attend(pool, 0, q, scoring)
    for row, length in enumerate(LENGTHS.tolist()):
        first = 0 if scoring.window is None else max(0, length - scoring.window)
        keys, values = (part.transpose(0, 1) for part in pool.read(0, slots[row, first:length]))
        scores = q[row] @ keys.transpose(1, 2) * scoring.scale
        if scoring.softcap is not None:
            scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
        torch.testing.assert_close(together[row], scores.softmax(-1) @ values, atol=1e-6, rtol=1e-5)


def test_sequences_that_begin_alike_share_their_blocks_and_keep_a_token_of_their_own():
    common = tuple(range(5, 15))
    with tiny_policy(engine=EngineSettings(block_size=4)) as policy:
        engine = policy.engine

        def second_step() -> tuple[int, int]:
            for tail in ((20,), (21,), (22, 23)):
                request = TokenRequest((*common, *tail), SamplingParams(max_tokens=3))
                engine._scheduler.add(RunningSequence(request, 0, lambda delta: None, list(request.prompt_ids)))
            engine.step()
            decode = pack_step(engine._scheduler.schedule(), engine._pool, 4).tables._decode
            return decode._shared_P.numel(), decode._own_BC.shape[1]

        assert policy.run(second_step) == (8, 5)
