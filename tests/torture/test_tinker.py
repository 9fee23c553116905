"""The server of the Tinker API: odd fields, extreme numbers, other keys' things, names that leave the folder."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np
import pytest

from integrations.tinker.test_server import Client
from mini_agentic_rl.integrations.tinker.wire.messages import FLOAT32, INT64, new_message

from .conftest import SIZE, Attack
from .neighbours import Neighbour, Served, served
from .servers import TINKER
from .test_odd_requests import ODD, places, with_text

JSON: Final = {"Content-Type": "application/json"}
PROTOBUF: Final = {"Content-Type": "application/x-protobuf"}
TOKENS: Final = [5, 6, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(TINKER, str(tmp_path_factory.mktemp("out"))) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    client = Client(server.url)
    yield client
    client.post(f"sessions/{client.session}/finish")


class Witness:
    """A client whose numbers must stay what they are, whatever others do."""

    def __init__(self, url: str) -> None:
        self._client = Client(url)
        self._model = self._client.create()
        self._client.loss(self._model)
        self._client.step(self._model, 0.05)
        self._sampler = self._client.sampler(self._model)
        self._known = self._seen()

    def check(self) -> None:
        assert self._seen() == self._known

    def _seen(self) -> list[float]:
        found = self._client.sample(self._sampler, prompt_logprobs=True, sampling_params={"temperature": 0})
        numbers = [*found["prompt_logprobs"][1:], *found["sequences"][0]["logprobs"], *self._client.learnt(self._model)]
        return [round(number, 4) for number in numbers]

    def close(self) -> None:
        self._client.post(f"sessions/{self._client.session}/finish")


def _promised(client: Client, answer: httpx.Response) -> dict[str, Any]:
    """Return the result of a request that was taken, or what it was refused with; neither is the server's fault."""
    assert answer.status_code < 500, answer.text[:500]
    told = answer.json()
    if answer.status_code >= 400:
        assert told["detail"]
        return told
    if "request_id" not in told:
        return told
    found = client.result(told)
    assert found.get("category") != "server", found
    return found


def _bodies(client: Client, model: str, sampler: str) -> dict[str, dict[str, Any]]:
    """Give a sound body for each route that takes one."""
    tensor = {"data": TOKENS[1:], "dtype": "int64", "shape": [5]}
    datum = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": TOKENS[:-1]}]},
        "loss_fn_inputs": {"target_tokens": tensor, "weights": {"data": [1.0] * 5, "dtype": "float32"}},
    }
    loss = {"data": [datum], "loss_fn": "cross_entropy", "loss_fn_config": {}}
    own = {"session_id": client.session}
    path = f"tinker://{model}/weights/kept"
    asked = {
        "num_samples": 1,
        "prompt": {"chunks": [{"tokens": TOKENS}]},
        "sampling_params": {"max_tokens": 2, "seed": 1, "stop": ["a"], "temperature": 1.0, "top_k": 1, "top_p": 0.9},
        "sampling_session_id": sampler,
        "seq_id": None,
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 1,
        "topk_sample_logprobs": 1,
        "target_prompt_logprobs": {"data": [1] * 5, "dtype": "int64", "shape": [5, 1]},
        "prompt_logprobs_last_n": 2,
    }
    return {
        "client/config": {},
        "create_session": {"tags": ["a"], "user_metadata": {"a": "b"}, "display_name": "a"},
        "session_heartbeat": own,
        "get_info": {"model_id": model},
        "forward_backward": {"model_id": model, "seq_id": None, "forward_backward_input": loss},
        "forward": {"model_id": model, "forward_input": loss},
        "optim_step": {
            "model_id": model,
            "adam_params": dict.fromkeys(("learning_rate", "beta1", "beta2", "eps", "weight_decay"), 0.1),
            "optimizer_params": {"type": "adamw"},
        },
        "save_weights": {
            "model_id": model,
            "path": "kept",
            "overwrite": True,
            "ttl_seconds": 9999,
            "user_metadata": {},
        },
        "save_weights_for_sampler": {"model_id": model, "path": None, "sampling_session_seq_id": 1, "kind": "snapshot"},
        "load_weights": {"model_id": model, "path": path, "optimizer": False},
        "create_sampling_session": own | {"sampling_session_seq_id": 9, "model_path": path, "base_model": "tiny"},
        "join_sampling_session": {"sampling_session_id": sampler},
        "asample": asked,
        "cancel_future": {"request_id": "a"},
        "retrieve_future": {"request_id": "a"},
        "weights_info": {"tinker_path": path},
        "create_model": own
        | {
            "model_seq_id": 0,
            "base_model": "tiny",
            "user_metadata": {"a": 1},
            "lora_config": {"rank": 2, "seed": 1, "train_unembed": True, "train_mlp": True, "train_attn": True},
            "optimizer_config": {"type": "adamw"},
        },
    }


def test_odd_values_in_every_field_of_tinker(attack: Attack, server: Served, client: Client) -> None:
    model = client.create()
    client.do("save_weights", model, path="kept")
    bodies = _bodies(client, model, client.sampler(model))
    tries = [(path, place, odd) for path, body in bodies.items() for place in places(body) for odd in ODD]
    random.Random(0).shuffle(tries)
    witness = Witness(server.url)
    for path, place, odd in tries[: attack.times(len(tries))]:
        with attack.attempt(f"{path} with {place} = {odd[:40]}"):
            answer = client.http.post(path, content=with_text(bodies[path], place, odd), headers=JSON)
            if path == "create_session" and answer.status_code == 200:
                client.post(f"sessions/{answer.json()['session_id']}/finish")
            else:
                _promised(client, answer)
    with attack.attempt("another client"):
        witness.check()
    witness.close()


NUMBERS: Final = (0.0, -1.0, 1e-45, 1e30, 3e38, -3e38, 1e39, 1e308, -1e308)


def test_extreme_numbers_of_tinker(attack: Attack, server: Served, client: Client) -> None:
    """Numbers that no float32 holds, or none that is learnt from: they fail their request and change nobody else's."""
    draw = random.Random(3)
    witness = Witness(server.url)
    steps = [
        (field, number)
        for field in ("learning_rate", "beta1", "eps", "weight_decay", "grad_clip_norm")
        for number in (*NUMBERS, 1e9, 0.9999999999999999)
    ]
    losses = [
        (loss, name, number)
        for loss in ("importance_sampling", "ppo", "cispo", "dro")
        for name in ("logprobs", "advantages")
        for number in NUMBERS
    ]
    losses += [("cross_entropy", "weights", number) for number in NUMBERS]
    configs = [(name, number) for name in ("clip_low_threshold", "clip_high_threshold", "x") for number in NUMBERS]
    tries = [("step", *each) for each in steps] + [("loss", *each) for each in losses]
    tries += [("config", *each) for each in configs]
    tries += [
        ("lora", field, number)
        for field, numbers in (
            ("rank", (0, -1, 129, 4096, 10**9, 2**31, 2**63, 10**400)),
            ("seed", (-1, 2**31, 2**62, 2**63, -(2**63), 2**70)),
        )
        for number in numbers
    ]
    tries += [
        ("sampling", field, number)
        for field, numbers in (
            ("seed", (-1, 2**62, 2**63, 2**70)),
            ("top_k", (-(10**9), 10**6, 2**31, 2**63)),
            ("max_tokens", (0, 2**31, 2**63)),
            ("temperature", (1e-320, 1e-40, 1e30, 1e308, -1.0)),
            ("top_p", (1e-320, 1.0000001, 0.0)),
        )
        for number in numbers
    ]
    tries += [
        ("tokens", "prompt", tokens)
        for tokens in (
            [-1],
            [300],
            [2**31 - 1],
            [2**31],
            [-(2**63)],
            [1] * 511,
            [1] * 512,
            [1] * 513,
            [],
            [1.5],
            [None],
            [True],
        )
    ]
    draw.shuffle(tries)
    for kind, field, *rest in tries[: attack.times(len(tries))]:
        with attack.attempt((kind, field, str(rest)[:80])):
            _extreme(client, kind, field, rest)
    with attack.attempt("another client"):
        witness.check()
    witness.close()


def _extreme(client: Client, kind: str, field: str, rest: list[Any]) -> None:
    own = Client(str(client.http.base_url).removesuffix("/api/v1/"))
    try:
        if kind == "lora":
            body = {"session_id": own.session, "model_seq_id": 0, "base_model": "tiny", "lora_config": {field: rest[0]}}
            _promised(own, own.http.post("create_model", json=body))
            return
        model = own.create()
        prompt: Any = {"chunks": [{"tokens": TOKENS}]}
        datum: dict[str, Any] = {"model_input": prompt, "loss_fn_inputs": {}}
        inputs = datum["loss_fn_inputs"]
        inputs["target_tokens"] = {"data": TOKENS, "dtype": "int64"}
        given: dict[str, Any] = {"data": [datum], "loss_fn": "ppo"}
        inputs |= {name: {"data": [-1.0] * 6, "dtype": "float32"} for name in ("logprobs", "advantages")}
        if kind == "tokens":
            datum["model_input"] = prompt = {"chunks": [{"tokens": rest[0]}]}
        elif kind == "config":
            given["loss_fn_config"] = {field: rest[0]}
        elif kind == "loss":
            given["loss_fn"], number = field, rest[1]
            if field == "cross_entropy":
                inputs.clear()
                inputs["target_tokens"] = {"data": TOKENS, "dtype": "int64"}
            inputs[rest[0]] = {"data": [number] * 6, "dtype": "float32"}
        _promised(own, own.http.post("forward_backward", json={"model_id": model, "forward_backward_input": given}))
        adam = {"learning_rate": 0.01} | ({field: rest[0]} if kind == "step" else {})
        _promised(own, own.http.post("optim_step", json={"model_id": model, "adam_params": adam}))
        asked = {"model_id": model, "sampling_session_seq_id": 0}
        sampler = _promised(own, own.http.post("save_weights_for_sampler", json=asked)).get("sampling_session_id")
        params = {"max_tokens": 2} | ({field: rest[0]} if kind == "sampling" else {})
        body = {"sampling_session_id": sampler, "prompt": prompt, "sampling_params": params, "prompt_logprobs": True}
        _promised(own, own.http.post("asample", json=body))
        _promised(own, own.http.post("save_weights", json={"model_id": model, "path": "spoilt", "overwrite": True}))
    finally:
        own.post(f"sessions/{own.session}/finish")


def test_large_messages_at_tinker(attack: Attack, server: Served, client: Client) -> None:
    """Data in protobuf as large as the server reads, in the shapes that cost most."""
    size = round(60 * 2**20 * min(1.0, SIZE))
    model = client.create()
    shapes = _messages(model, size)
    with Neighbour(f"{server.url}/health") as neighbour:
        for name, body in list(shapes.items())[: attack.times(len(shapes) if SIZE >= 1 else 10 * len(shapes))]:
            neighbour.forget()
            with attack.attempt(f"{name}, {len(body)} bytes", limit_s=120), attack.memory_of(server.pid):
                _promised(client, client.http.post("forward_backward", content=body, headers=PROTOBUF))
                attack.neighbour(neighbour.longest())
    assert (attack.row.peak_mib or 0) < 1024, "more than 1 GB"


def _messages(model: str, size: int) -> dict[str, bytes]:
    def message(*data: Any) -> bytes:
        found = new_message("ForwardBackwardRequest", model_id=model, loss_fn="cross_entropy")
        found.data.extend(data)
        return bytes(found.SerializeToString())

    def datum(tokens: Any, shape: list[int] | None = None, sparse: bool = False) -> Any:
        found = new_message("Datum")
        found.model_input.add().encoded_text.tokens = np.asarray(tokens, "<i4").tobytes()
        tensor = found.loss_fn_inputs.add(key="target_tokens").value
        tensor.dtype, tensor.shape[:] = INT64, shape or [len(tokens)]
        if sparse:
            tensor.sparse_csr.crow_indices = np.zeros((shape or [1])[0] + 1, "<i8").tobytes()
        else:
            tensor.dense = np.asarray(tokens, "<i8").tobytes()
        return found

    head, long = message(), size // 12
    numbers = new_message("Datum")
    numbers.loss_fn_inputs.add(key="weights").value.dtype = FLOAT32
    numbers.loss_fn_inputs[0].value.dense = np.full(size // 4, np.nan, "<f4").tobytes()
    inner = _varint(size // 2 * 2)
    return {
        "a million tokens in one sequence": message(datum(np.ones(long, int))),
        "a sequence beside the context": message(datum(np.ones(513, int))),
        "empty data": head + b"\x1a\x00" * (size // 2),
        "empty chunks": head + b"\x1a" + inner + b"\x0a\x00" * (size // 2),
        "empty tensors": head + b"\x1a" + inner + b"\x12\x00" * (size // 2),
        "shapes": head + b"\x1a" + _varint(len(s := _shape(size))) + s,
        "sparse and huge": message(*(datum([1], [1, 1 << 24], sparse=True) for _ in range(50))),
        "rows of a sparse one": message(datum([1], [long, 1], sparse=True)),
        "numbers that are none": message(numbers),
        "noise": random.Random(0).randbytes(size),
        "unknown fields": head + b"\x78\x01" * (size // 2),
        "one field without an end": head + b"\x1a" + _varint(2 * size) + b"\x00" * size,
    }


def _shape(size: int) -> bytes:
    shape = b"\x22" + _varint(size) + b"\x01" * size
    entry = b"\x0a\x01a\x12" + _varint(len(shape)) + shape
    return b"\x12" + _varint(len(entry)) + entry


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes((*found, value))


def test_a_long_batch_at_tinker(attack: Attack, server: Served, client: Client) -> None:
    """A million tokens to learn from: another client samples meanwhile, with weights that are read for it."""
    count = max(8, attack.times(2000) // (1 if SIZE >= 1 else 20))
    tokens = [5 + number % 200 for number in range(500)]
    tensor = {"data": tokens, "dtype": "int64"}
    # The first tokens differ: what sequences have in common is computed once.
    data = [
        {
            "model_input": {"chunks": [{"tokens": [number % 250, *tokens[1:]]}]},
            "loss_fn_inputs": {"target_tokens": tensor},
        }
        for number in range(count)
    ]
    given = {"data": data, "loss_fn": "cross_entropy"}
    model, other = client.create(), Client(server.url)
    sampler = other.sampler(other.create(rank=2))
    alone = other.sample(sampler, prompt_logprobs=True, sampling_params={"temperature": 0})
    own = other.create(rank=3)
    with Neighbour(f"{server.url}/health") as neighbour:
        neighbour.forget()
        with attack.attempt(f"{500 * count} tokens"), attack.memory_of(server.pid):
            promised = client.post("forward_backward", model_id=model, forward_backward_input=given)
            answered = 0
            for fresh in (False, True):
                asked = other.sampler(own) if fresh and SIZE < 1 else sampler
                found = other.sample(asked, prompt_logprobs=True, sampling_params={"temperature": 0})
                if asked == sampler:
                    assert found["sequences"][0]["tokens"] == alone["sequences"][0]["tokens"]
                    assert found["prompt_logprobs"][1:] == pytest.approx(alone["prompt_logprobs"][1:], abs=1e-4)
                body = {"request_id": promised["request_id"]}
                answered += client.http.post("retrieve_future", json=body).status_code == 408
            if SIZE >= 1:  # a smaller batch may be done before
                assert answered
            learnt = client.result(promised)
            assert len(learnt["loss_fn_outputs"]) == count
            attack.neighbour(neighbour.longest())
    other.post(f"sessions/{other.session}/finish")


def test_names_that_leave_the_folder_of_tinker(attack: Attack, tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    names = [
        "..",
        "../out",
        "../../../out",
        "/tmp/out",
        "a/b",
        ".hidden",
        "",
        " ",
        "a\\b",
        "a\0b",
        "~",
        "C:out",
        "x" * 129,
        "a" * 10_000,
        "é",
        "a\nb",
        "..%2fout",
        "weights/../..",
        "\ud800",
        "a" * 128,
        "CON",
        "-",
        "--help",
        "$(id)",
    ]
    with served(TINKER, str(folder)) as server:
        client = Client(server.url)
        model = client.create()
        own = {"session_id": client.session}
        for name in names:
            path = f"tinker://{model}/weights/{name}"
            text = json.dumps(name)
            with attack.attempt(f"saving as {name[:30]!r}"):
                for route in ("save_weights", "save_weights_for_sampler"):
                    body = f'{{"model_id":"{model}","path":{text},"overwrite":true}}'
                    _promised(client, client.http.post(route, content=body, headers=JSON))
            with attack.attempt(f"reading {name[:30]!r}"):
                for odd in (path, f"tinker://{name}/weights/a", f"tinker://{model}/{name}/a", name, f"file://{name}"):
                    told = json.dumps({"model_id": model, "path": odd, "tinker_path": odd, "model_path": odd, **own})
                    for route in ("load_weights", "weights_info", "create_sampling_session"):
                        body = told[:-1] + ',"sampling_session_seq_id":0}'
                        _promised(client, client.http.post(route, content=body, headers=JSON))
            with attack.attempt(f"removing {name[:30]!r}"):
                quoted = httpx.QueryParams({"a": name.encode("utf-8", "replace").decode()}).__str__()[2:]
                for odd in (quoted, quoted.replace("%2F", "/")):
                    for run in (model, odd):
                        answer = client.http.delete(f"training_runs/{run}/checkpoints/weights/{odd}")
                        assert answer.status_code < 500, answer.text
        with attack.attempt("what is there"):
            assert sorted(path.name for path in tmp_path.iterdir()) == ["inside"]
            inside = {path.relative_to(folder).parts[0] for path in folder.iterdir()}
            assert inside <= {"runs", ".snapshots", ".lock"}
            assert {path.name for path in (folder / "runs").iterdir()} == {model.replace(":", "_")}


def test_tinker_across_keys(attack: Attack, tmp_path: Path) -> None:
    """All that alice has is as unknown to bob as what never was."""
    with served(TINKER, str(tmp_path), "alice", "bob") as server:
        alice, bob = (Client(server.url, key) for key in ("alice", "bob"))
        for each in (alice, bob):
            each.session = each.post("create_session", display_name="the vault", user_metadata={"a": "ochre"})[
                "session_id"
            ]
        model, own = alice.create(), bob.create()
        alice.loss(model)
        saved = alice.do("save_weights", model, path="kept")["path"]
        sampler = alice.sampler(model)
        promised = alice.post("optim_step", model_id=model, seq_id=alice.next(model))
        alice.result(promised)
        bodies = _bodies(alice, model, sampler)
        for path in ("create_session", "client/config"):
            del bodies[path]
        for body in bodies.values():
            body.pop("seq_id", None)
        bodies["cancel_future"] = bodies["retrieve_future"] = {"request_id": promised["request_id"]}
        loading = {"model_id": own, "path": saved, "seq_id": None}
        sampling = {"session_id": bob.session, "sampling_session_seq_id": 3, "model_path": saved}
        tries = [("POST", path, body) for path, body in bodies.items()]
        tries += [("POST", "load_weights", loading), ("POST", "create_sampling_session", sampling)]
        run = f"training_runs/{model}"
        tries += [
            (method, path, {})
            for method, path in (
                ("GET", run),
                ("DELETE", f"{run}/checkpoints/weights/kept"),
                ("GET", f"samplers/{sampler}"),
                ("POST", f"sessions/{alice.session}/finish"),
            )
        ]
        for method, path, body in tries:
            with attack.attempt((method, path)):
                given = {} if method in ("GET", "DELETE") else {"json": body}
                answer = bob.http.request(method, path, **given)
                assert answer.status_code < 500, answer.text
                found = bob.result(answer.json()) if "request_id" in answer.json() and answer.status_code == 200 else {}
                told = answer.text + json.dumps(found)
                # an empty object answers the cancelling or ending of something that is not there
                assert answer.status_code >= 400 or "error" in found or answer.json() == {}, told
                assert "ochre" not in told
        with attack.attempt("alice has it all still"):
            assert alice.post("session_heartbeat", session_id=alice.session)["type"] == "session_heartbeat"
            assert alice.post("weights_info", tinker_path=saved)["lora_rank"] == 4
            assert alice.result(promised)["type"] == "optim_step"
            assert alice.sample(sampler)["sequences"]
