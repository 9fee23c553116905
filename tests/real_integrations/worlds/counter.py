"""A taskset of `verifiers` whose task brings a tool."""

from __future__ import annotations

import verifiers.v1 as vf


class CounterTools(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = None

    @vf.tool
    async def add(self, a: int, b: int) -> str:
        """Add two whole numbers."""
        return str(a + b)


class CounterData(vf.TaskData):
    answer: str


class CounterTask(vf.Task[CounterData]):
    @classmethod
    def toolsets(cls, config):
        return [CounterTools(vf.ToolsetConfig())]

    @vf.reward
    async def used(self, trace) -> float:
        return float(any(str(message.content) == self.data.answer for message in trace.tool_messages))


class CounterTaskset(vf.Taskset[CounterTask]):
    def load(self):
        for number in range(20):
            yield CounterTask(CounterData(prompt=f"{number} + 1 = ?", answer=str(number + 1)), self.config.task)


__all__ = ["CounterTaskset"]

if __name__ == "__main__":  # how the package starts a server of tools
    CounterTools.run()
