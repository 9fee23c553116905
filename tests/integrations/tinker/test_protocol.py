"""The protocol of the Tinker API: messages, the order of a client's requests, and the bounds of what it has open."""

from __future__ import annotations

import asyncio
import re
from itertools import pairwise

import numpy as np
import pytest

from mini_agentic_rl.http import BadRequestError, OverloadedError
from mini_agentic_rl.integrations.tinker.promises import FETCHED_SECONDS, GoneError, NumberedTurns, Promise, Promises
from mini_agentic_rl.integrations.tinker.protobuf import (
    FLOAT32,
    INT64,
    LossAnswer,
    SampleAnswer,
    SampledTokens,
    TopTokens,
    new_message,
    read_message,
    tensor_to_proto,
)
from mini_agentic_rl.integrations.tinker.requests import Room, loss_request_of_proto, targets_of_json
from mini_agentic_rl.integrations.tinker.sessions import TinkerSessions
from mini_agentic_rl.integrations.tinker.settings import RefusedError


def loss_message(tokens=(1, 2), **tensors):
    message = new_message("ForwardBackwardRequest", model_id="m", seq_id=3, loss_fn="ppo")
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.array(tokens, "<i4").tobytes()
    for name, values in tensors.items():
        datum.loss_fn_inputs.add(key=name).value.CopyFrom(tensor_to_proto(np.array(values)))
    return message


def test_a_request_in_protobuf_is_read():
    message = loss_message(target_tokens=[2, 3], logprobs=[0.5, -1.0])
    message.loss_fn_config_v2.add(key="beta").value.number = 0.5
    found = loss_request_of_proto(message.SerializeToString())
    assert (found.model_id, found.seq_id, found.loss, found.config) == ("m", 3, "ppo", {"beta": 0.5})
    assert not found.forward_only
    (datum,) = found.data
    assert datum.tokens_T.tolist() == [1, 2]
    assert datum.inputs["target_tokens"].tolist() == [2, 3]
    assert datum.inputs["logprobs"].dtype == np.float32


def replace_text_by_picture(datum) -> None:
    datum.model_input[0].image.SetInParent()
    datum.model_input[0].ClearField("encoded_text")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda datum: setattr(datum.model_input[0].encoded_text, "tokens", b"abc"), "3 bytes"),
        (lambda datum: datum.loss_fn_inputs[0].value.shape.append(7), r"has 2 numbers, but the shape \[2, 7\]"),
        (lambda datum: datum.loss_fn_inputs[0].value.shape.extend([1 << 20] * 2), r"data\[0\].*one or two axes"),
        (
            lambda datum: datum.loss_fn_inputs[0].value.shape.__setitem__(slice(None), [1 << 12, 1 << 13]),
            "whole request",
        ),
        (lambda datum: datum.loss_fn_inputs[0].value.sparse_csr.SetInParent(), "send a dense one"),
        (replace_text_by_picture, "no encoded text"),
    ],
    ids=["half a token", "shape", "axes", "numbers", "sparse", "picture"],
)
def test_malformed_data_are_refused(change, complaint):
    message = loss_message(target_tokens=[2, 3])
    change(message.data[0])
    request = loss_request_of_proto(message.SerializeToString())
    assert re.search(complaint, str(request.error))
    assert request.data == []


def test_log_probabilities_of_data_are_told_apart_in_the_answer():
    logprobs = [np.array([1, 2, 3], "f4"), np.array([[4, 5]], "f4"), np.array([6], "f4"), np.array([7, 8], "f4")]
    answer = LossAnswer(logprobs, {"loss:sum": 2.5})
    message = read_message("ForwardBackwardOutput", answer.to_proto())
    found = []
    for record in message.loss_fn_outputs:
        (entry,) = record.fields
        offsets = np.frombuffer(entry.value.offsets, "<i8") // 4
        numbers = np.frombuffer(entry.value.data, "<f4")
        trailing = list(entry.value.trailing_shape)
        for start, stop in pairwise(offsets):
            found.append(numbers[start:stop].reshape(-1, *trailing).tolist())
        assert record.num_datums == len(offsets) - 1
    assert found == [each.tolist() for each in logprobs]
    assert [(each.key, each.value) for each in message.metrics] == [("loss:sum", 2.5)]


def test_continuations_become_a_message_in_which_what_was_not_scored_is_marked():
    answer = SampleAnswer(
        [SampledTokens([4, 5], [-1.0, -0.5], "length")],
        prompt_logprobs=np.array([np.nan, -2], "f4"),
        prompt_top_tokens=TopTokens(np.array([[9, 9], [1, 2]]), np.array([[np.nan, np.nan], [-1, -2]], "f4")),
        target_logprobs=np.array([[1.5]], "f4"),
    )
    message = read_message("SampleResponse", answer.to_proto())
    assert np.frombuffer(message.sequences[0].tokens, "<i4").tolist() == [4, 5]
    assert message.sequences[0].stop_reason == 1
    assert np.frombuffer(message.topk_prompt_logprobs.token_ids, "<i4").tolist() == [0, 0, 1, 2]
    assert np.frombuffer(message.topk_prompt_logprobs.logprobs, "<f4").tolist() == [-99999, -99999, -1, -2]
    assert np.frombuffer(message.target_prompt_logprobs.dense, "<f4").tolist() == [1.5]
    assert message.target_prompt_logprobs.dtype == FLOAT32 != INT64


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"\x1a\x00" * 70_000, "more than 65536 messages as `data`"),
        (b"\x1a\x80\x80\x80\x01" + b"\x0a\x00" * (1 << 20), "more than 500000 fields in one message"),
        (b"\x1a\x80\x80\x80\x09" + b"\x00" * (9 << 21), "more than 16777216 bytes"),
        (b"\x1a\x8c\x80\x40\x12\x88\x80\x40\x12\x84\x80\x40\x22\x80\x80\x40" + b"\x01" * (1 << 20), "more than 500000"),
        (b"\x1a\x7f", "cut off"),
        (b"\xff" * 11, "cut off"),
        (b"\x1b\x1c", "wire type 3"),
    ],
    ids=["many data", "many chunks", "a large one", "a long shape", "cut off", "endless", "group"],
)
def test_a_message_with_too_much_in_it_is_refused_before_it_is_decoded(body, complaint):
    with pytest.raises(BadRequestError, match=complaint):
        loss_request_of_proto(body)


WRONG_TENSORS = [
    {"data": [1.5]},
    {"data": [True]},
    {"data": [2**64]},
    {"data": [10**400]},
    {"data": ["1"]},
    {"data": [[1]]},
    {"data": "1"},
    {"data": [1], "shape": [1] * 65},
    {"data": [1], "shape": [10**400]},
    {"data": [1], "shape": "1"},
    {"data": [1], "shape": [1.0]},
    {"data": [1], "sparse_crow_indices": [0, 1], "sparse_col_indices": [0], "shape": [1, 1]},
    {"data": [1], "dtype": "float32"},
]


def test_a_tensor_that_is_no_list_of_whole_numbers_is_refused():
    for wrong in WRONG_TENSORS:
        with pytest.raises(RefusedError, match="x"):
            targets_of_json({"dtype": "int64"} | wrong, "x", Room())


async def test_requests_are_done_in_the_order_of_their_numbers_however_they_arrive():
    turns, done = NumberedTurns(1, gap_seconds=60), []

    def work(number: int):
        async def work() -> int:
            await asyncio.sleep(0)
            done.append(number)
            return number

        return work

    promises = {number: Promise(str(number), "s") for number in (3, 2, 4, 1)}
    for number, promise in promises.items():
        turns.put(number, promise, work(number))
        await asyncio.sleep(0)
    assert all([await promise.wait(60) for promise in promises.values()])
    assert (done, promises[3].result) == ([1, 2, 3, 4], 3)


async def test_a_request_that_fails_or_never_comes_holds_up_none_behind_it():
    async def fail() -> None:
        raise ZeroDivisionError

    async def succeed() -> str:
        return "done"

    turns = NumberedTurns(1, gap_seconds=0.01)
    first, second, fourth, fifth = (Promise(str(number), "s") for number in (1, 2, 4, 5))
    turns.put(2, second, succeed)
    turns.put(1, first, fail)
    assert await second.wait(60)
    assert (second.result, first.failure.category) == ("done", "server")
    with pytest.raises(BadRequestError, match="seq_id 2 was served already"):
        turns.number(2)
    assert turns.number(None) == 3
    turns.put(4, fourth, succeed)
    assert await fourth.wait(60)
    assert "number 3 of this client never arrived" in str(fourth.failure)
    turns.put(5, fifth, succeed)
    assert await fifth.wait(60)
    assert fifth.result == "done"


async def test_open_requests_are_bounded_and_fetched_ones_forgotten_in_time():
    now = [0.0]
    promises = Promises(2, clock=lambda: now[0])
    first = promises.open("a", "one")
    promises.open("b", "one")
    with pytest.raises(OverloadedError, match="2 requests open, which is the most"):
        promises.open("c", "one")
    promises.open("d", "two")
    promises.fetched(first)
    promises.open("c", "one")
    assert promises.get("a") is first
    now[0] = FETCHED_SECONDS + 1
    with pytest.raises(GoneError, match="no request 'a' any more"):
        promises.get("a")
    waiting = promises.open("e", "two")
    waiting.work = asyncio.create_task(waiting.settle(lambda: asyncio.sleep(3600)))
    await asyncio.sleep(0)
    for session in ("one", "two"):
        promises.drop(session)
    assert await waiting.wait(60)
    assert isinstance(waiting.failure, RefusedError)
    assert len(promises) == 0


def test_a_session_is_silent_after_a_time_without_a_word():
    now = [0.0]
    sessions = TinkerSessions(2, clock=lambda: now[0])
    first, second = sessions.begin(), sessions.begin()
    with pytest.raises(OverloadedError, match="max_clients"):
        sessions.begin()
    now[0] = 8.0
    sessions.hear(first.session_id)
    now[0] = 12.0
    assert sessions.silent(10.0) == [second.session_id]
    assert sorted(sessions.silent(3.0)) == sorted([first.session_id, second.session_id])
