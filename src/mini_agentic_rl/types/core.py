"""Data models: tasks become rollouts, a rollout is tried in attempts, attempts record spans.

The models do no I/O: the code that writes spans registers here how a trainable agent is recorded
(`on_trainable_agent`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar, Union, overload

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from .spans import Span, SpanCoreFields

if TYPE_CHECKING:  # hooks get objects of higher layers, of which only the names are needed here
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
"""Dictionary; None, which agent-lightning writes without metadata, becomes an empty one."""

TERMINAL_ROLLOUT_STATUSES: frozenset[RolloutStatus] = frozenset({"succeeded", "failed", "cancelled"})


def without_array(value: Any) -> Any:
    """Return the element of a NumPy scalar, or of an array or a tensor without axes; any other value as it is.

    A comparison of NumPy values gives `numpy.bool_`, which Python does not count as a number.
    """
    return value.item() if getattr(value, "ndim", None) == 0 else value


REWARD_KEY = "reward"
"""Key in a rollout's metadata: its final reward, if the agent or a hook sets it there."""
OUTPUT_KEY = "output"
"""Key in a rollout's metadata: the answer of the agent."""
TRACES_KEY = "traces"
"""Key in a rollout's metadata: spans that the agent created."""


class RolloutConfig(BaseModel):
    """Limits of a rollout's attempts, and when it is retried."""

    timeout_seconds: float | None = Field(default=None, gt=0, description="An attempt older than this times out.")
    unresponsive_seconds: float | None = Field(
        default=None, gt=0, description="An attempt silent for longer than this is unresponsive."
    )
    max_attempts: int = Field(default=1, ge=1, description="At most this many attempts.")
    retry_condition: list[AttemptStatus] = Field(
        default_factory=list, description="Attempt statuses after which the rollout is queued again."
    )


class Rollout(BaseModel):
    """A task to be run, and its progress.

    An agent may also return its answer as `Rollout(input=…, output=…)`, a rollout without an id.
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
        """Answer of the agent: `metadata["output"]`, or None."""
        return self.metadata.get(OUTPUT_KEY)

    @output.setter
    def output(self, value: Any) -> None:
        self.metadata[OUTPUT_KEY] = value

    def mark_agent_as_trainable(self, agent_id: str) -> None:
        """Train the LLM calls of this agent. Once an agent is marked, calls of unmarked agents are not trained.

        Inside a rollout the mark is recorded as a span, so that an algorithm in any process reads it.

        Args:
            agent_id: name of the agent in its spans (`gen_ai.agent.name`).

        Raises:
            ValueError: the name is empty or not a string.
        """
        if not isinstance(agent_id, str) or not agent_id:
            raise ValueError(f"mark_agent_as_trainable takes the name of an agent, not {agent_id!r}")
        marked = trainable_agents_in(self.metadata)
        if agent_id not in marked:
            self.metadata[TRAINABLE_AGENTS_KEY] = [*marked, agent_id]
        for recorder in _recorders:
            recorder(agent_id)


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
    """A rollout to put into the queue."""

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
    """An LLM call as (prompt, response, reward). Prompt and response have `token_ids` and `raw_content`, the prompt
    also the `image_urls` of its messages, the response the `logprobs` if they are known."""

    prompt: Any
    response: Any
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class Task(BaseModel):
    """A task with the rollout that runs it, for parameters of agents and hooks that are annotated `Task`.

    `input` is the row of the data set; `task["question"]` is short for `task.input["question"]`.
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
    """Rows with a length and an index: a list, a `datasets.Dataset`, or one of ours."""

    def __getitem__(self, index: int, /) -> T_co: ...
    def __len__(self) -> int: ...


TRAINABLE_AGENTS_KEY: Final = "trainable_agents"
"""Key in a rollout's metadata: the agents marked as trainable, in order."""

_recorders: list[Callable[[str], None]] = []


def on_trainable_agent(recorder: Callable[[str], None]) -> None:
    """Call `recorder` with the name of every agent that is marked in the future."""
    if recorder not in _recorders:
        _recorders.append(recorder)


def trainable_agents_in(metadata: Mapping[str, Any]) -> list[str]:
    """Return the agents marked as trainable in a rollout's metadata."""
    marked = metadata.get(TRAINABLE_AGENTS_KEY) or []
    return [marked] if isinstance(marked, str) else [str(name) for name in marked]


class ParallelWorkerBase:
    """Base of objects that several workers use at once. Override the life-cycle methods that you need; they do nothing
    here.

    `init` is called first and `teardown` last; `init_worker` and `teardown_worker` enclose the work of a worker.
    """

    worker_id: Any = None
    """Number of the worker; None before `init_worker`."""

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
    """User code that runs around each rollout.

    Override the methods that you need. Every method is called with keyword arguments and may be sync or async.

    A method gets the arguments that it names, out of those below and `task` (the rollout's input, or a `Task` for a
    parameter with that annotation), so `on_rollout_end(self, rollout, task)` works too. The final reward of the rollout
    is the number that `on_trace_end` or `on_rollout_end` returns, or sets as `rollout.metadata["reward"]`; a later hook
    replaces the reward of an earlier one. Rewards that `on_trace_end` emits are recorded before the reward that the
    agent returns, which is then final; those that `on_rollout_end` emits are recorded after it.
    """

    async def on_rollout_start(self, *, agent: LitAgent, runner: Runner, rollout: Rollout) -> Any:
        """Run before the attempt."""

    async def on_trace_start(self, *, agent: LitAgent, runner: Runner, tracer: Tracer, rollout: Rollout) -> Any:
        """Run inside the trace, before the agent is called; spans created here belong to the attempt."""

    async def on_trace_end(self, *, agent: LitAgent, runner: Runner, tracer: Tracer, rollout: Rollout) -> Any:
        """Run inside the trace, after the agent has returned or raised."""

    async def on_rollout_end(self, *, agent: LitAgent, runner: Runner, rollout: Rollout, spans: Sequence[Span]) -> Any:
        """Run after the trace, when every span of the attempt is in the store; the usual place to score a rollout."""
