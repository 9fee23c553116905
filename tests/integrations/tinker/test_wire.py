"""Data and results in the messages of the Tinker API."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from mini_agentic_rl.http import BadRequestError
from mini_agentic_rl.integrations.tinker.settings import RefusedError
from mini_agentic_rl.integrations.tinker.wire.data import (
    Room,
    loss_request_of_proto,
    sound,
    targets_of_json,
    tensor_to_proto,
)
from mini_agentic_rl.integrations.tinker.wire.messages import FLOAT32, INT64, new_message, read_message
from mini_agentic_rl.integrations.tinker.wire.results import LikeliestRows, LossAnswer, SampleAnswer, SampledTokens


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
    (datum,) = sound(found.data)
    assert datum.tokens_T.tolist() == [1, 2]
    assert datum.inputs["target_tokens"].tolist() == [2, 3]
    assert datum.inputs["logprobs"].dtype == np.float32


def test_malformed_messages_are_refused():
    with pytest.raises(BadRequestError, match="no ForwardBackwardRequest"):
        loss_request_of_proto(b"\xff\xff\xff")
    message = loss_message(target_tokens=[2, 3])
    message.data[0].model_input[0].encoded_text.tokens = b"abc"
    with pytest.raises(RefusedError, match="3 bytes"):
        sound(loss_request_of_proto(message.SerializeToString()).data)
    message = loss_message(target_tokens=[2, 3])
    message.data[0].loss_fn_inputs[0].value.shape[:] = [7]
    with pytest.raises(RefusedError, match=r"has 2 numbers, but the shape \[7\]"):
        sound(loss_request_of_proto(message.SerializeToString()).data)
    message = loss_message(target_tokens=[2, 3])
    message.data[0].loss_fn_inputs[0].value.sparse_csr.SetInParent()
    with pytest.raises(RefusedError, match="send a dense one"):
        sound(loss_request_of_proto(message.SerializeToString()).data)
    message.data[0].model_input[0].image.SetInParent()
    message.data[0].model_input[0].ClearField("encoded_text")
    with pytest.raises(RefusedError, match="no encoded text"):
        sound(loss_request_of_proto(message.SerializeToString()).data)


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


def test_what_was_not_scored_is_marked_in_rows_of_likeliest_tokens():
    rows = LikeliestRows(np.array([[9, 9], [1, 2]]), np.array([[np.nan, np.nan], [-1, -2]], "f4"))
    message = rows.to_message()
    assert np.frombuffer(message.token_ids, "<i4").tolist() == [0, 0, 1, 2]
    assert np.frombuffer(message.logprobs, "<f4").tolist() == [-99999, -99999, -1, -2]


def test_continuations_become_a_message():
    answer = SampleAnswer(
        [SampledTokens([4, 5], [-1.0, -0.5], "length")],
        prompt_logprobs=np.array([np.nan, -2], "f4"),
        target_logprobs=np.array([[1.5]], "f4"),
    )
    message = read_message("SampleResponse", answer.to_proto())
    assert np.frombuffer(message.sequences[0].tokens, "<i4").tolist() == [4, 5]
    assert message.sequences[0].stop_reason == 1
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


def test_shapes_of_more_numbers_than_a_request_may_have_are_refused():
    message = loss_message(target_tokens=[2, 3])
    message.data[0].loss_fn_inputs[0].value.shape[:] = [1 << 12, 1 << 13]
    with pytest.raises(RefusedError, match=r"data\[0\].*are the most of a whole request"):
        sound(loss_request_of_proto(message.SerializeToString()).data)


@pytest.mark.parametrize(
    "wrong",
    [
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
    ],
)
def test_a_tensor_that_is_no_list_of_whole_numbers_is_refused(wrong):
    with pytest.raises(RefusedError, match="x"):
        targets_of_json({"dtype": "int64"} | wrong, "x", Room())
