"""The processes of test_killed_processes.py: `training_roles.py learner|runners|sampler OPTIONS`, a JSON object.

The learner writes the rollouts of each optimizer step into a file, right after the step. The reward follows from the
rollout's id.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from openai import AsyncOpenAI

from mini_agentic_rl import LightningStoreClient, MiniGRPO, Trainer, llm_rollout
from mini_agentic_rl.algorithm.groups import Group
from mini_agentic_rl.execution import ClientServerExecutionStrategy
from mini_agentic_rl.metrics import MetricsLogger
from mini_agentic_rl.policy import LoraSettings
from mini_agentic_rl.runner import LitAgentRunner
from mini_agentic_rl.samplers import SamplerSettings
from samplers.vllm_wire import VllmWireServer


class NotingGRPO(MiniGRPO):
    """GRPO that notes the rollouts of each optimizer step."""

    notes: Path

    def objective(self, *arguments: Any) -> Any:
        objective = super().objective(*arguments)
        update = objective.update

        def noting(adapter: str, groups: Sequence[Group]) -> dict[str, float]:
            learnt: dict[str, float] = update(adapter, groups)
            rollout_ids = [trajectory.rollout_id for group in groups for trajectory in group.trajectories]
            with self.notes.open("a") as notes:
                notes.write(json.dumps({"step": self.progress.step, "rollouts": rollout_ids}) + "\n")
            return learnt

        objective.update = noting
        return objective


@llm_rollout
async def talk(task: Any, llm: Any, rollout: Any) -> float:
    """Call the model twice in one conversation."""
    messages: list[Any] = [{"role": "user", "content": task["word"]}]
    async with AsyncOpenAI(api_key=llm.api_key or "none", base_url=llm.endpoint, max_retries=20, timeout=600) as client:
        for _ in range(2):
            reply = await client.chat.completions.create(model=llm.model, messages=messages, **llm.sampling_parameters)
            content = reply.choices[0].message.content or ""
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "More."}]
    return int.from_bytes(hashlib.sha256(rollout.rollout_id.encode()).digest()[:4], "big") / 2**32


def _store(options: Mapping[str, Any]) -> LightningStoreClient:
    return LightningStoreClient(options["store"], api_key=options["api_key"], retry_seconds=300)


def learn(options: Mapping[str, Any]) -> None:
    """Train, from the last checkpoint where there is one."""
    servers = SamplerSettings(
        sampler="vllm",
        sampler_url=options["samplers"],
        sampler_folder=Path(options["folder"]).parent / "weights",
    )
    algorithm = NotingGRPO(
        options["model"],
        lora=LoraSettings(r=4, alpha=8),  # what the servers have room for
        load_options={"device": "cpu", "dtype": "float32"},
        sampler=servers,
        **options["algorithm"],
    )
    algorithm.notes = Path(options["notes"])
    tasks = [{"word": f"word {number}"} for number in range(options["algorithm"]["tasks_per_step"])]
    Trainer(
        algorithm=algorithm,
        strategy=ClientServerExecutionStrategy(role="algorithm", managed_store=False, silent_seconds=10),
        store=_store(options),
        output_dir=options["folder"],
        logger=MetricsLogger(),
        resume=True,
    ).fit(talk, tasks)


def run_agents(options: Mapping[str, Any]) -> None:
    """Run the agent until the process is ended."""
    runners = ClientServerExecutionStrategy(
        role="runner", main_process="runner", n_runners=options["runners"], managed_store=False
    )
    runner: LitAgentRunner[Any] = LitAgentRunner(heartbeat_interval=1.0)
    trainer = Trainer(strategy=runners, runner=runner, store=_store(options), logger=MetricsLogger())
    trainer.fit(talk)


def sample(options: Mapping[str, Any]) -> None:
    """Be a server that speaks vLLM's wire, until the process is ended."""
    VllmWireServer(options["model"], port=options["port"])
    print("serving", flush=True)
    signal.pause()


if __name__ == "__main__":
    {"learner": learn, "runners": run_agents, "sampler": sample}[sys.argv[1]](json.loads(sys.argv[2]))
