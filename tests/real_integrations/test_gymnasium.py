"""A text environment of the real Gymnasium, by the id under which it is registered."""

from __future__ import annotations

import pytest

from mini_agentic_rl.environments import Endpoint, load_environment
from mini_agentic_rl.errors import UserError
from recipes.playing import ScriptedServer, scripted_server

pytest.importorskip("gymnasium", reason="gymnasium is not installed: its environments are left unchecked")
server = scripted_server
NAME = "gymnasium:number_game:worlds/Digits-v0"


async def test_a_registered_environment_is_made_with_its_seed(server: ScriptedServer):
    env = load_environment(f"{NAME}?turns=2")
    server.says("xx")
    task = env.tasks("train", 1)[0]
    outcome = await env.rollout(task, Endpoint(server.endpoint, "m"))
    assert outcome.rewards == {"reward": 0.5, "turns": 2.0}
    opening = server.requests[0]["messages"]
    await env.rollout(task, Endpoint(server.endpoint, "m"))
    assert server.requests[2]["messages"] == opening


def test_an_id_that_is_not_registered_is_told():
    with pytest.raises(UserError, match="gymnasium has no 'Nowhere-v0'"):
        load_environment("gymnasium:Nowhere-v0")
