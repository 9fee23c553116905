"""An agent of one call, for tests of what a training tells others."""

from __future__ import annotations

import httpx

from mini_agentic_rl import LitAgent


class Talking(LitAgent):
    """Says a task's word to the model; a reply of odd length is worth 1, so that rewards differ."""

    async def rollout_async(self, task, resources, rollout):
        llm = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        body = {"model": llm.model, "messages": [{"role": "user", "content": task["word"]}], "max_tokens": 4}
        async with httpx.AsyncClient(timeout=60) as client:
            answer = await client.post(f"{url}/chat/completions", json=body)
        return float(len(answer.json()["choices"][0]["message"]["content"]) % 2)
