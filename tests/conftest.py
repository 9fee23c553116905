"""Fixtures that several rooms share."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from mini_agentic_rl.logging import PACKAGE_LOGGER

# How long an example takes says nothing about the code on a machine that is shared.
settings.register_profile("shared-machine", deadline=None)
settings.load_profile("shared-machine")

# The same as `_one_torch_thread` for the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

# A shell without job control starts its background commands with Ctrl-C ignored, and an ignored signal stays ignored in
# every process that they start. The tests press Ctrl-C in theirs, so it is given back here: a handler is not inherited,
# and the processes begin with the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The ten thousand modules that the tests import stay for good: no collection of garbage need look through them.
gc.disable()


def pytest_collection_finish():
    """Collect garbage again, apart from what there is by now."""
    gc.freeze()
    gc.enable()


_LONG = (
    "recipes/test_sql_training.py",
    "store/test_properties.py",
    "store/test_concurrency.py",
    "jobs/test_interrupt.py",
    "policy/test_ranks_that_go.py",
    "samplers/test_pool.py",
    "platform/test_without_posix.py",
    "invariant/test_ranks.py",
    "invariant/test_resume.py",
    "invariant/test_sharded_ranks.py",
    "examples/test_examples.py",
    "jobs/test_bad_input.py",
    "execution/test_client_server_strategy.py",
    "algorithm/test_ppo.py",
    "integrations/trl/test_trl_backend.py",
    "post_training/test_sft.py",
    "test_wings.py",
    "test_kills.py",
)
"""The longest files. They run first, so that no worker is left alone with one of them at the end."""


def pytest_collection_modifyitems(items):
    """Begin with the longest files."""
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(_LONG)}
    items.sort(key=lambda item: places.get(item.path, len(_LONG)))


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread():
    """Give torch one thread: tiny models are faster on it, and every number is then the same on any machine."""
    import torch  # not above: the process that gives the workers their tests needs none of it

    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _certificates_read_once() -> Iterator[None]:
    """Share one SSL context: every client of httpx would read all certificates again, which takes 20 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """Undo what a command does to the package's loggers: it sets them up for its process, not for the next test."""
    before = {name: (list(log.handlers), log.level, log.propagate) for name, log in _package_loggers().items()}
    yield
    for name, logger in _package_loggers().items():
        handlers, level, logger.propagate = before.get(name, ([], logging.NOTSET, True))
        for handler in set(logger.handlers) - set(handlers):
            logger.removeHandler(handler)
            if isinstance(handler, logging.FileHandler):
                handler.close()
        logger.setLevel(level)


def _package_loggers() -> dict[str, logging.Logger]:
    names = [name for name in logging.root.manager.loggerDict if f"{name}.".startswith(f"{PACKAGE_LOGGER}.")]
    return {name: logging.getLogger(name) for name in names}


def _save_tiny(folder: Path, **options) -> str:
    from tiny import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    model = tiny_model(len(tokenizer), **options)
    model.config.max_position_embeddings = 1024
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """Return a folder with a tiny model and its tokenizer, as `--model` takes it."""
    return _save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def wide_folder(tmp_path_factory):
    """Return a folder like `tiny_folder` with wider layers."""
    return _save_tiny(tmp_path_factory.mktemp("models") / "wide", width=96)
