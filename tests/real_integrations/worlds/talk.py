"""An environment of `verifiers` with several turns: the world answers as the user until it has heard enough."""

from __future__ import annotations

import verifiers.v1 as vf

TURNS = 3


class TalkConfig(vf.EnvConfig):
    speaker: vf.AgentConfig = vf.AgentConfig()


class TalkTask(vf.Task[vf.TaskData]):
    pass


class TalkEnv(vf.Env[TalkConfig]):
    async def run(self, task, agents):
        heard = 0
        async with agents.speaker.interaction(task) as talk:
            segment = await talk.turn()
            for turn in range(1, TURNS):
                if segment.terminated:
                    break
                heard += len(segment.last_reply)
                segment = await talk.turn(f"Go on, {turn}.")
        talk.trace.record_reward("brevity", 1.0 / (1.0 + heard))


class TalkTaskset(vf.Taskset[TalkTask]):
    def load(self):
        for number in range(30):
            yield TalkTask(vf.TaskData(prompt=f"Tell me of {number}."), self.config.task)


__all__ = ["TalkEnv", "TalkTaskset"]
