"""Bounds on the cost of compiling and following the form of an answer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from mini_agentic_rl.gateway.constraints import grammar as grammar_module
from mini_agentic_rl.gateway.constraints.compiler import ConstraintCompiler
from mini_agentic_rl.gateway.constraints.rules import MAX_SCHEMA_SIZE
from mini_agentic_rl.gateway.settings import GrammarLimits
from mini_agentic_rl.http import BadRequestError, OverloadedError
from mini_agentic_rl.tokens import ConstraintError
from processes import all_have_ended

from ..samples import CALCULATOR
from .forms import END, TOKENIZER, VOCABULARY, function, ids_of, json_schema, rule_of, strict, walk


def patterns(count):
    """Quick to send; what it takes to compile doubles with each pattern."""
    return {"type": "string", "allOf": [{"pattern": f".*a{number}.*"} for number in range(count)]}


def form(schema):
    return rule_of(response_format=json_schema(schema))


def small(**limits):
    return ConstraintCompiler(TOKENIZER, [END], limits=GrammarLimits(**limits))


def forks():
    """Grammars that this process's processes are trying; other helpers and servers of the worker have children too."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # one may end meanwhile, and is then trying nothing
            if "trial_worker" in " ".join(child.cmdline()):
                found += child.children()
    return found


async def until(condition):
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


async def test_a_schema_beyond_a_bound_is_refused_by_its_setting_again_and_again(monkeypatch):
    memory = psutil.Process().memory_info().rss
    compiler = small(max_grammar_seconds=0.1)
    costly = function({"properties": {"a": patterns(30)}})
    seconds = r"more than 0\.1 s of processor time \(max_grammar_seconds\)"
    for rule, reason, param in (
        (form(patterns(30)), seconds, "response_format"),
        (rule_of(tools=[costly], tool_choice="required"), seconds, "tool_choice"),
        (form({"type": "objekt"}), "objekt", "response_format.json_schema.schema"),
    ):
        with pytest.raises(BadRequestError, match=reason) as first:
            await compiler.compile(rule)
        assert first.value.param == param
        with monkeypatch.context() as patched:
            patched.setattr(ConstraintCompiler, "_try", None)
            with pytest.raises(BadRequestError) as second:
                await compiler.compile(rule)
        assert (second.value.message, second.value.param) == (first.value.message, first.value.param)
    with pytest.raises(BadRequestError, match=r"more than 16 MiB of memory \(max_grammar_mib\)"):
        await small(max_grammar_seconds=60, max_grammar_mib=16).compile(form(patterns(30)))
    assert psutil.Process().memory_info().rss - memory < 64 * 2**20
    assert not forks()


@pytest.fixture(scope="module")
def patient():
    """A compiler that lets a form take a minute and gigabytes."""
    compiler = small(max_grammar_seconds=60, max_grammar_mib=4096)
    yield compiler
    compiler.close()


async def test_a_trial_ends_with_its_last_caller_only(patient):
    await patient.compile(form({"type": "null"}))
    leaving = [asyncio.ensure_future(patient.compile(form(patterns(30)))) for _ in range(2)]
    await until(forks)
    leaving[0].cancel()
    await asyncio.wait([leaving[0]])
    await asyncio.sleep(0.1)
    await until(forks)  # between a first and a second try there may be none for a moment
    assert not leaving[1].done(), "another still waits for it"
    leaving[1].cancel()
    coming = asyncio.ensure_future(patient.compile(form(patterns(30))))
    await asyncio.wait([leaving[1]])
    assert not coming.done(), "a new caller is not refused with those who left"
    coming.cancel()
    await until(lambda: not forks())


async def test_quick_schemas_do_not_wait_for_slow_ones(patient):
    await patient.compile(form({"type": "null"}))
    slow = [asyncio.ensure_future(patient.compile(form(patterns(30 + number)))) for number in range(6)]
    await asyncio.sleep(0.05)
    await asyncio.wait_for(patient.compile(form({"type": "boolean"})), 120)
    assert not any(task.done() for task in slow)
    for task in slow:
        task.cancel()


async def test_more_forms_at_once_than_may_wait_are_refused_for_now(patient):
    await patient.compile(form({"type": "null"}))
    many = [asyncio.ensure_future(patient.compile(form(patterns(20 + number)))) for number in range(80)]
    done, waiting = await asyncio.wait(many, timeout=120, return_when=asyncio.FIRST_EXCEPTION)
    assert {type(task.exception()) for task in done} == {OverloadedError}
    for task in waiting:
        task.cancel()


async def test_a_form_whose_process_dies_is_tried_again_in_a_new_one():
    compiler = small(max_grammar_seconds=60, max_grammar_mib=2048)
    before = {child.pid for child in psutil.Process().children()}
    await compiler.compile(form({"type": "null"}))
    (worker,) = (child for child in psutil.Process().children() if child.pid not in before)
    worker.kill()  # before its end is noticed
    await compiler.compile(form({"type": "boolean"}))
    asked = asyncio.ensure_future(compiler.compile(form(patterns(12))))
    await until(lambda: forks() or asked.done())
    assert not asked.done(), "the process must die while the form is tried"
    for worker in {fork.parent() for fork in forks()}:
        worker.kill()
    with pytest.raises(BadRequestError, match="Unable to determine if regex is empty"):  # the outcome of the trial
        await asked


async def test_without_fork_one_process_tries_the_forms_one_after_another_and_no_file_is_left(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "fork")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    compiler = small(max_grammar_seconds=0.2)
    assert await compiler.compile(form({"type": "boolean"})) is not None
    with pytest.raises(BadRequestError, match="max_grammar_seconds"):
        await compiler.compile(form(patterns(20)))
    assert await compiler.compile(form({"type": "integer"})) is not None  # in a new process
    assert list(tmp_path.iterdir()) == []
    compiler.close()


def test_the_process_ends_with_its_compiler():
    compiler = small()
    before = {child.pid for child in psutil.Process().children()}
    asyncio.run(compiler.compile(form({"type": "null"})))
    started = [child for child in psutil.Process().children() if child.pid not in before]
    assert len(started) == 1
    del compiler
    gc.collect()
    assert not started[0].is_running()


@pytest.mark.skipif(
    sys.platform != "linux", reason="no death signal of parents here: that a try ends with its server is left unchecked"
)
async def test_nothing_is_left_of_a_server_that_was_killed_while_it_compiled():
    program = """
import asyncio
from gateway.constraints.test_bounds import form, patterns, small
asyncio.run(small(max_grammar_seconds=60, max_grammar_mib=2048).compile(form(patterns(30))))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", program], env=environment) as server:
        family: list[psutil.Process] = []

        def compiles():
            family[:] = psutil.Process(server.pid).children(recursive=True)
            return len(family) >= 2

        try:
            await until(compiles)
        finally:
            server.kill()
        assert all_have_ended(family, 120)


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": json_schema({"enum": ["x" * MAX_SCHEMA_SIZE]})},
        {"tools": [CALCULATOR, function({"properties": {"x" * MAX_SCHEMA_SIZE: {}}})], "tool_choice": "required"},
        {"tools": [strict(function({"allOf": [{}] * MAX_SCHEMA_SIZE}))]},
    ],
)
def test_schemas_that_are_too_large_are_refused_before_anything_is_made_of_them(fields):
    with pytest.raises(BadRequestError, match="more than 120000 characters") as caught:
        rule_of(**fields)
    assert caught.value.param == (
        "response_format.json_schema.schema"
        if "response_format" in fields
        else f"tools[{len(fields['tools']) - 1}].function.parameters"
    )


def test_descriptions_do_not_count_and_schemas_that_bind_nothing_are_not_measured():
    described = function({"properties": {"description": {"type": "string", "description": "x" * MAX_SCHEMA_SIZE}}})
    assert rule_of(tools=[described], tool_choice="required") is not None
    assert rule_of(tools=[function({"properties": {"x" * MAX_SCHEMA_SIZE: {}}})]) is None


async def test_an_answer_whose_schema_is_slow_to_follow_is_stopped(monkeypatch):
    compiler = ConstraintCompiler(TOKENIZER, [END])
    begin = await compiler.compile(form({"type": "array", "items": {"type": "integer"}}))
    walk(begin(), {END})
    spent = iter([0.0, 0.05, 0.05, 100.0])
    monkeypatch.setattr(grammar_module.time, "thread_time", lambda: next(spent))
    one, other = begin(), begin()
    one.allowed(VOCABULARY)
    with pytest.raises(ConstraintError, match="too long to follow"):
        other.allowed(VOCABULARY)
    with pytest.raises(ConstraintError, match="too long to follow"):
        begin().allowed(VOCABULARY)


def test_a_token_that_fails_takes_its_time_as_well(monkeypatch):
    """Each of 32 answers to one question came to the same token, which failed after a while."""
    spent = iter([0.0, 100.0])
    monkeypatch.setattr(grammar_module.time, "thread_time", lambda: next(spent))
    budget = grammar_module.StepBudget()
    with pytest.raises(ConstraintError, match="too many items"), budget.spending():
        raise ConstraintError("too many items")
    with pytest.raises(ConstraintError, match="too long to follow"), budget.spending():
        raise AssertionError("its time is up")


async def test_the_first_token_costs_the_copies_of_a_grammar_nothing():
    objects = [
        {"type": "object", "properties": {name: {"const": n} for name in "abc"[: n % 3 + 1]}} for n in range(300)
    ]
    begin = await ConstraintCompiler(TOKENIZER, [END]).compile(form({"anyOf": objects}))
    times = []
    for _ in range(3):  # a loaded machine makes a try slow, not all of them
        began = time.thread_time()
        for _ in range(20):
            assert ids_of(begin().allowed(VOCABULARY))
        times.append(time.thread_time() - began)
    assert min(times) < 0.25
