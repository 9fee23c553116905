"""How conversations went on, as metrics of each training step."""

from __future__ import annotations

from letters import TASKS, CountLetters, Kept, algorithm
from openai import AsyncOpenAI

from mini_agentic_rl import LitAgent, Trainer


class AsksAgain(LitAgent):
    """Two calls, the second after the first and the answer to it; in some tasks it writes the answer down changed."""

    async def rollout_async(self, task, resources, rollout):
        llm = resources["llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        messages = [{"role": "user", "content": task["word"]}]
        async with AsyncOpenAI(api_key="none", base_url=url) as client:
            for turn in range(2):
                reply = await client.chat.completions.create(
                    model=llm.model, messages=messages, **llm.sampling_parameters
                )
                content = reply.choices[0].message.content or ""
                changed = "changed " if task["word"] == "go" and turn == 0 else ""
                messages += [{"role": "assistant", "content": changed + content}, {"role": "user", "content": "More."}]
        rollout.metadata["reply"] = content


def test_each_step_tells_how_many_prompts_continued_began_and_forked_and_why():
    kept = Kept()
    trained = algorithm(total_steps=2, tasks_per_step=2, samples_per_prompt=3)
    tasks = [task for task in TASKS if task["word"] in ("hi", "go")]
    Trainer(algorithm=trained, hooks=[CountLetters()], n_runners=6, logger=kept).fit(AsksAgain(), tasks)
    steps = [row for row in kept.rows if "drift/continued" in row]
    assert len(steps) == 2
    for row in steps:
        drift = {name: value for name, value in row.items() if name.startswith("drift/") and value}
        assert drift == {"drift/rendered": 6, "drift/continued": 3, "drift/forked": 3, "drift/forked_edited": 3}
