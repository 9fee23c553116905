"""The nouns of the framework: tasks become rollouts, a rollout is tried in attempts, attempts leave spans.

Types do no I/O: the room that writes spans registers here how the mark of a trainable agent is recorded where the
algorithm sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, Union, overload

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from .spans import Span, SpanCoreFields

if TYPE_CHECKING:  # a hook sees objects of higher floors; only their names are needed here
    from opentelemetry.sdk.trace import ReadableSpan

    LitAgent = Any
    Runner = Any
    Tracer = Any


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

TaskInput: TypeAlias = Any
RolloutMode: TypeAlias = Literal["train", "val", "test"]
RolloutStatus: TypeAlias = Literal["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
AttemptStatus: TypeAlias = Literal["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
WorkerStatus: TypeAlias = Literal["idle", "busy", "unknown"]
RolloutRawResult: TypeAlias = Union[  # noqa: UP007  # "ReadableSpan" is a name in quotes, which has no `|`
    float, list["ReadableSpan"], list[Span], list[SpanCoreFields], None
]
"""Result of an agent: nothing, its final reward, or spans to add to the trace."""

Metadata: TypeAlias = Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)]
"""A dictionary, always: None, which agent-lightning writes for no metadata, becomes an empty one."""

TERMINAL_ROLLOUT_STATUSES: frozenset[RolloutStatus] = frozenset({"succeeded", "failed", "cancelled"})

REWARD_KEY = "reward"
"""Key in a rollout's metadata: its final reward, where the agent or a hook sets one there."""
OUTPUT_KEY = "output"
"""Key in a rollout's metadata: the answer of the agent."""
TRACES_KEY = "traces"
"""Key in a rollout's metadata: spans that the agent made itself."""


class RolloutConfig(BaseModel):
    """Limits of a rollout's attempts, and when it is tried again."""

    timeout_seconds: float | None = Field(default=None, gt=0, description="An attempt older than this is timed out.")
    unresponsive_seconds: float | None = Field(
        default=None, gt=0, description="An attempt silent for longer than this is unresponsive."
    )
    max_attempts: int = Field(default=1, ge=1, description="At most this many attempts.")
    retry_condition: list[AttemptStatus] = Field(
        default_factory=list, description="Attempt statuses after which the rollout is queued again."
    )


class Rollout(BaseModel):
    """A task to be run, and its progress.

    An agent may also make one to return it, of nothing but its input and its output: `Rollout(input=…, output=…)`. Such
    a rollout has no id; it carries the agent's answer about the rollout that it was given.
    """

    rollout_id: str
    input: TaskInput = Field(description="The task: one row of the data set.")
    start_time: float = Field(description="Seconds since the epoch.")
    end_time: float | None = None
    mode: RolloutMode | None = None
    resources_id: str | None = Field(default=None, description="Version of the resources to run it with.")
    status: RolloutStatus = "queuing"
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    metadata: Metadata = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _of_output(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or OUTPUT_KEY not in data or "rollout_id" in data:
            return data
        made = {key: data[key] for key in (OUTPUT_KEY, TRACES_KEY) if key in data}
        rest = {key: value for key, value in data.items() if key not in made}
        metadata = {**(data.get("metadata") or {}), **made}
        return {"start_time": time.time(), **rest, "rollout_id": "", "metadata": metadata}

    @property
    def output(self) -> Any:
        """Answer of the agent, where it gives one: `metadata["output"]`, or None."""
        return self.metadata.get(OUTPUT_KEY)

    @output.setter
    def output(self, value: Any) -> None:
        self.metadata[OUTPUT_KEY] = value

    def mark_agent_as_trainable(self, agent_id: str) -> None:
        """Train the LLM calls of this agent. Once an agent is marked, calls of unmarked ones are not trained.

        Called from inside the rollout, the mark is recorded as a span, so it reaches an algorithm in any process.

        Args:
            agent_id: name of the agent, as its spans carry it (`gen_ai.agent.name`).

        Raises:
            ValueError: the name is empty or no string.
        """
        mark_trainable_agent(self.metadata, agent_id)


class Attempt(BaseModel):
    """One execution of a rollout."""

    rollout_id: str
    attempt_id: str
    sequence_id: int = Field(ge=1, description="1 for the first attempt of its rollout.")
    start_time: float
    end_time: float | None = None
    status: AttemptStatus = "preparing"
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: Metadata = Field(default_factory=dict)


class AttemptedRollout(Rollout):
    """A rollout together with the attempt that is running it."""

    attempt: Attempt

    @field_validator("attempt")
    @classmethod
    def _same_rollout(cls, attempt: Attempt, info: Any) -> Attempt:
        rollout_id = info.data.get("rollout_id")
        if rollout_id is not None and attempt.rollout_id != rollout_id:
            raise ValueError(f"attempt {attempt.attempt_id} belongs to {attempt.rollout_id}, not to {rollout_id}")
        return attempt


class EnqueueRolloutRequest(BaseModel):
    """One rollout to put into the queue."""

    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None


class Worker(BaseModel):
    """State of one runner."""

    worker_id: str
    status: WorkerStatus = "unknown"
    heartbeat_stats: dict[str, Any] | None = None
    last_heartbeat_time: float | None = None
    last_dequeue_time: float | None = None
    last_busy_time: float | None = None
    last_idle_time: float | None = None
    current_rollout_id: str | None = None
    current_attempt_id: str | None = None


class Triplet(BaseModel):
    """One LLM call as (prompt, response, reward). Prompt and response hold `token_ids` and `raw_content`, the prompt
    also the `image_urls` of its messages, the response the `logprobs` where they are known.
    """

    prompt: Any
    response: Any
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class Task(BaseModel):
    """A task together with the rollout that runs it, for a parameter of an agent or a hook that is annotated `Task`.

    The row of the data set is `input`; its columns can also be had from the task itself (`task["question"]`).
    """

    rollout_id: str
    input: TaskInput
    mode: RolloutMode | None = None
    resources_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, rollout: Rollout) -> Task:
        """Return the task that `rollout` runs; they share their metadata."""
        return cls.model_construct(
            rollout_id=rollout.rollout_id,
            input=rollout.input,
            mode=rollout.mode,
            resources_id=rollout.resources_id,
            metadata=rollout.metadata,
        )

    def __getitem__(self, column: Any) -> Any:
        """Return a column of the row."""
        return self.input[column]


class PaginatedResult(BaseModel, Sequence[T], Generic[T]):
    """One page of a query; a sequence of its items."""

    items: list[T]
    limit: int = Field(description="-1 means no limit.")
    offset: int
    total: int = Field(description="Number of items that match, on all pages.")

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self.items[index]

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]  # a page iterates over its items, not its fields
        return iter(self.items)


class Dataset(Protocol[T_co]):
    """Anything with a length and rows by index: a list, a `datasets.Dataset`, ours."""

    def __getitem__(self, index: int, /) -> T_co: ...
    def __len__(self) -> int: ...


TRAINABLE_AGENTS_KEY: Final = "trainable_agents"
"""Key in a rollout's metadata: the agents that are marked as trainable, in the order of their marks."""

_recorders: list[Callable[[str], None]] = []


def on_trainable_agent(recorder: Callable[[str], None]) -> None:
    """Call `recorder` with the name of every agent that is marked from now on."""
    if recorder not in _recorders:
        _recorders.append(recorder)


def mark_trainable_agent(metadata: dict[str, Any], agent_id: str) -> None:
    """Mark an agent as trainable in the metadata of its rollout, and tell the recorders.

    Raises:
        ValueError: the name is empty or no string.
    """
    if not isinstance(agent_id, str) or not agent_id:
        raise ValueError(f"mark_agent_as_trainable takes the name of an agent, not {agent_id!r}")
    marked = trainable_agents_in(metadata)
    if agent_id not in marked:
        metadata[TRAINABLE_AGENTS_KEY] = [*marked, agent_id]
    for recorder in _recorders:
        recorder(agent_id)


def trainable_agents_in(metadata: Mapping[str, Any]) -> list[str]:
    """Return the agents that are marked in a rollout's metadata."""
    marked = metadata.get(TRAINABLE_AGENTS_KEY) or []
    return [marked] if isinstance(marked, str) else [str(name) for name in marked]


class ParallelWorkerBase:
    """Base of what several workers use at once. Override the steps of its life that you need; each does nothing here.

    `init` comes first and `teardown` last; `init_worker` and `teardown_worker` stand around the work of one worker.
    """

    worker_id: Any = None
    """Number of the worker that uses it; None before `init_worker`."""

    def init(self, *args: Any, **kwargs: Any) -> None:
        """Get ready, before any worker."""

    def init_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Get ready for one worker."""
        self.worker_id = worker_id

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Do the work."""

    def teardown_worker(self, worker_id: int, *args: Any, **kwargs: Any) -> None:
        """Clean up after one worker."""

    def teardown(self, *args: Any, **kwargs: Any) -> None:
        """Clean up after all workers."""


class Hook(ParallelWorkerBase):
    """Code of the user's that runs around each rollout.

    Override what you need. Every method is called with keyword arguments and may be sync or async.

    A method receives the arguments that it names, out of those listed here plus `task` (the rollout's input; a
    parameter that is annotated `Task` gets one with the row in its `input`), so the shorter `on_rollout_end(self,
    rollout, task)` works as well. The final reward of the rollout is the number that `on_trace_end` or `on_rollout_end`
    returns, or else the one to which it sets `rollout.metadata["reward"]`; a later hook's replaces an earlier one's.
    What `on_trace_end` emits stands before the reward that the agent returns, which is then the final one; what
    `on_rollout_end` emits stands behind it.
    """

    async def on_rollout_start(self, *, agent: LitAgent, runner: Runner, rollout: Rollout) -> Any:
        """Run before anything of the attempt has run."""

    async def on_trace_start(self, *, agent: LitAgent, runner: Runner, tracer: Tracer, rollout: Rollout) -> Any:
        """Run inside the trace, before the agent is called; spans made here belong to the attempt."""

    async def on_trace_end(self, *, agent: LitAgent, runner: Runner, tracer: Tracer, rollout: Rollout) -> Any:
        """Run inside the trace, after the agent has returned or raised."""

    async def on_rollout_end(self, *, agent: LitAgent, runner: Runner, rollout: Rollout, spans: Sequence[Span]) -> Any:
        """Run after the trace: every span of the attempt is in the store. The usual place to score a rollout."""
