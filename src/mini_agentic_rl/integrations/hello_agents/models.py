"""The beginning of a training and of a measurement: the model of a `TrainingConfig`, the project of its metrics, and
code with an event loop of its own where another loop runs already, as in a notebook."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ...errors import UserError
from .config import TrainingConfig

T = TypeVar("T")

_PROJECT_VARIABLE = "WANDB_PROJECT"


def model_source(config: TrainingConfig) -> str:
    """`model_name`; with a `model_revision` the local folder of that revision, which is fetched if it is not there.

    Raises:
        UserError: there is no such revision, or the Hub does not answer.
    """
    if config.model_revision is None:
        return config.model_name
    if config.model_name == "embedded" or Path(config.model_name).expanduser().exists():
        raise UserError(f"model_revision is for models of the Hub, not for {config.model_name!r}: leave it None")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return str(snapshot_download(config.model_name, revision=config.model_revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(
            f"model_name {config.model_name!r} in the revision {config.model_revision!r} cannot be had: {first}"
        ) from error


@contextmanager
def tracking_project(config: TrainingConfig) -> Iterator[None]:
    """Within, Weights & Biases keeps runs in the project of the configuration."""
    before = os.environ.get(_PROJECT_VARIABLE)
    if config.use_wandb and config.wandb_project is not None:
        os.environ[_PROJECT_VARIABLE] = config.wandb_project
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_PROJECT_VARIABLE, None)
        else:
            os.environ[_PROJECT_VARIABLE] = before


def outside_of_loops(call: Callable[[], T]) -> T:
    """Return or raise what `call` does: here, or in a thread where an event loop runs here. Block either way."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return call()
    with ThreadPoolExecutor(1, "training") as thread:
        return thread.submit(call).result()
