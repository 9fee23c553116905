"""The routes of the Tinker API as its clients use them, on a tiny model, without the clients' package."""

from __future__ import annotations

import shutil
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from mini_agentic_rl.http import RequestLimits
from mini_agentic_rl.integrations.tinker import ClientSettings, TinkerServer
from mini_agentic_rl.integrations.tinker.protobuf import read_message
from mini_agentic_rl.integrations.tinker.settings import NoWeightsError
from tiny import tiny_model, tiny_tokenizer

from .test_protocol import loss_message

TOKENS = [5, 6, 7, 8, 9, 10]
PROTOBUF = "application/x-protobuf"


class Client:
    """What a client of Tinker sends, and what it makes of the answers."""

    def __init__(self, url: str, key: str = "") -> None:
        self.http = httpx.Client(
            base_url=f"{url}/api/v1", timeout=120, verify=False, headers={"x-api-key": key} if key else {}
        )
        self.session = self.post("create_session", tags=[])["session_id"] if not key else ""
        self.models = 0
        self.numbers: dict[str, int] = {}

    def post(self, path: str, /, **body: Any) -> dict[str, Any]:
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def result(self, promised: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON of a result, or its message in protobuf as `{"protobuf": bytes}`."""
        while True:
            response = self.http.post("retrieve_future", json={"request_id": promised["request_id"]})
            if response.status_code == 408:
                continue
            assert response.status_code == 200, response.text
            if response.headers["content-type"] == PROTOBUF:
                return {"protobuf": response.content}
            return response.json()

    def create(self, base: str = "tiny", **lora: Any) -> str:
        number, self.models = self.models, self.models + 1
        body = {"session_id": self.session, "model_seq_id": number, "base_model": base}
        made = self.result(self.post("create_model", **body, lora_config={"rank": 4, "seed": 1} | lora))
        assert made.get("type") == "create_model", made
        return made["model_id"]

    def next(self, model: str) -> int:
        self.numbers[model] = self.numbers.get(model, 0) + 1
        return self.numbers[model]

    def do(self, path: str, model: str, /, **body: Any) -> dict[str, Any]:
        return self.result(self.post(path, model_id=model, seq_id=self.next(model), **body))

    def loss(self, model: str, *, tokens=TOKENS, loss="cross_entropy", forward=False, **inputs: Any) -> dict[str, Any]:
        """Return `logprobs` and the sum of the `loss`, or the refusal."""
        floats = {name: np.array(values, np.float32) for name, values in inputs.items()}
        message = loss_message(tokens[:-1], target_tokens=tokens[1:], **floats)
        message.model_id, message.loss_fn, message.seq_id = model, loss, self.next(model)
        message.forward_only = forward
        return self.loss_result(self.send(message))

    def send(self, message: Any) -> dict[str, Any]:
        response = self.http.post(
            "forward_backward", content=message.SerializeToString(), headers={"content-type": PROTOBUF}
        )
        assert response.status_code == 200, response.text
        return response.json()

    def loss_result(self, promised: dict[str, Any]) -> dict[str, Any]:
        result = self.result(promised)
        if "error" in result:
            return result
        output = read_message("ForwardBackwardOutput", result["protobuf"])
        numbers = np.frombuffer(output.loss_fn_outputs[0].fields[0].value.data, "<f4")
        return {"logprobs": numbers.tolist(), "loss": output.metrics[0].value}

    def step(self, model: str, rate: float = 1e-2) -> dict[str, Any]:
        return self.do("optim_step", model, adam_params={"learning_rate": rate})

    def learnt(self, model: str) -> list[float]:
        return self.loss(model, forward=True)["logprobs"]

    def sampler(self, model: str) -> str:
        return self.do("save_weights_for_sampler", model, sampling_session_seq_id=len(self.numbers) + self.next("s"))[
            "sampling_session_id"
        ]

    def sample(self, sampler: str, prompt=TOKENS, **body: Any) -> dict[str, Any]:
        params = {"max_tokens": 4, "stop": [], **body.pop("sampling_params", {})}
        prompt = {"chunks": [{"tokens": prompt}]}
        asked = {"sampling_session_id": sampler, "seq_id": self.next("samples"), "prompt": prompt}
        result = self.result(self.post("asample", **asked, sampling_params=params, **body))
        if "error" in result:
            return result
        message = read_message("SampleResponse", result["protobuf"])
        best = message.topk_prompt_logprobs
        return {
            "prompt_logprobs": np.frombuffer(message.prompt_logprobs, "<f4").tolist(),
            "topk_prompt_logprobs": np.frombuffer(best.logprobs, "<f4").reshape(best.length, best.k).tolist(),
            "sequences": [
                {
                    "tokens": np.frombuffer(each.tokens, "<i4").tolist(),
                    "logprobs": np.frombuffer(each.logprobs, "<f4").tolist(),
                    "stop_reason": "length" if each.stop_reason else "stop",
                }
                for each in message.sequences
            ],
        }


def start(folder, **options: Any) -> TinkerServer:
    tokenizer = tiny_tokenizer()
    return TinkerServer.load(
        tiny_model(len(tokenizer)), folder, tokenizer=tokenizer, names=["tiny"], load={"dtype": "float32"}, **options
    ).start()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    settings = ClientSettings(max_open_requests=20, retrieve_seconds=5, sampler_slots=2, max_trained_adapters=4)
    server = start(tmp_path_factory.mktemp("out"), clients=settings)
    yield server
    server.stop()


@pytest.fixture
def client(server):
    client = Client(server.root)
    yield client
    client.post(f"sessions/{client.session}/finish")


def test_a_model_learns_is_saved_and_goes_on_in_the_next_server(tmp_path):
    server = start(tmp_path)
    client = Client(server.root)
    model = client.create()
    losses = []
    for _ in range(3):
        losses.append(client.loss(model)["loss"])
        client.step(model)
    assert losses == sorted(losses, reverse=True)
    path = client.do("save_weights", model, path="one")["path"]
    assert path == f"tinker://{model}/weights/one"
    again = client.do("save_weights", model, path="one")
    assert "already" in again["error"]
    assert client.do("save_weights", model, path="one", overwrite=True)["path"] == path
    client.loss(model)
    client.step(model)
    unbroken = client.learnt(model)
    server.stop()
    assert not (tmp_path / ".snapshots").exists()

    server = start(tmp_path)
    client = Client(server.root)
    body = {"session_id": client.session, "model_seq_id": 0, "path": path, "optimizer": True}
    loaded = client.result(client.post("load_weights", **body))
    resumed = loaded["model_id"]
    assert client.post("weights_info", tinker_path=path)["lora_rank"] == 4
    client.loss(resumed)
    client.step(resumed)
    assert client.learnt(resumed) == pytest.approx(unbroken, abs=1e-5)
    assert client.http.get(f"training_runs/{model}").json()["base_model"] == "tiny"
    assert client.http.delete(f"training_runs/{model}/checkpoints/weights/one").status_code == 200
    assert client.http.post("weights_info", json={"tinker_path": path}).status_code == 404
    server.stop()


@pytest.mark.parametrize("damage", ["removed", "truncated", "deleted", "overwritten"])
def test_weights_that_go_while_they_are_used_are_told_of_without_the_server_s_places(client, server, damage):
    model = client.create()
    path = client.do("save_weights", model, path="one")["path"]
    sampling = client.do("save_weights_for_sampler", model, path="two")["path"]
    session = client.post(
        "create_sampling_session", session_id=client.session, sampling_session_seq_id=7, model_path=sampling
    )
    checkpoints = server.service.checkpoints
    known = checkpoints.get(path, "")
    for each in (known, checkpoints.get(sampling, "")):
        if damage == "removed":
            shutil.rmtree(each.folder)
        elif damage == "truncated":
            (each.folder / "adapter_model.safetensors").write_bytes(b"no tensors")
        elif damage == "deleted":
            deleted = client.http.delete(f"training_runs/{model}/checkpoints/{each.kind}/{each.name}")
            assert deleted.status_code == 200
    if damage == "overwritten":
        client.do("save_weights", model, path="one", overwrite=True)
        with pytest.raises(NoWeightsError, match="no weights at"):
            checkpoints.read(known, lambda folder: None)
        return
    for answer in (
        client.do("load_weights", model, path=path, optimizer=False),
        client.sample(session["sampling_session_id"]),
    ):
        assert answer["category"] == "user"
        assert str(known.folder.parent) not in answer["error"]
        assert "weights" in answer["error"]


def test_sampled_tokens_and_prompts_have_the_learner_s_logprobs(client):
    model = client.create()
    client.loss(model)
    client.step(model)
    sampler = client.sampler(model)
    asked = {"num_samples": 3, "prompt_logprobs": True, "topk_prompt_logprobs": 2}
    answer = client.sample(sampler, **asked, sampling_params={"seed": 5})
    assert np.isnan(answer["prompt_logprobs"][0])
    assert answer["prompt_logprobs"][1:] == pytest.approx(client.learnt(model), abs=1e-4)
    best = answer["topk_prompt_logprobs"][1]
    assert best[0] >= best[1]
    for sequence in answer["sequences"]:
        full = TOKENS + sequence["tokens"]
        found = client.loss(model, tokens=full, forward=True)["logprobs"]
        assert found[len(TOKENS) - 1 :] == pytest.approx(sequence["logprobs"], abs=1e-4)
    assert len({tuple(each["tokens"]) for each in answer["sequences"]}) > 1
    same = client.sample(sampler, num_samples=3, sampling_params={"seed": 5})
    assert [each["tokens"] for each in same["sequences"]] == [each["tokens"] for each in answer["sequences"]]
    greedy = client.sample(sampler, sampling_params={"temperature": 0})["sequences"][0]["tokens"]
    stopped = client.sample(sampler, sampling_params={"temperature": 0, "stop": [greedy[1]]})["sequences"][0]
    assert (stopped["tokens"], stopped["stop_reason"]) == (greedy[: greedy.index(greedy[1]) + 1], "stop")


def test_a_text_ends_a_continuation_at_the_token_that_completes_it(client, server):
    sampler = client.sampler(client.create())
    decode = server.service.model.tokenizer.decode
    greedy = client.sample(sampler, sampling_params={"temperature": 0, "max_tokens": 8})["sequences"][0]["tokens"]
    text = decode(greedy[:3])[-2:]
    answer = client.sample(sampler, sampling_params={"temperature": 0, "max_tokens": 8, "stop": text})["sequences"][0]
    first = next(count for count in range(1, 9) if text in decode(greedy[:count]))
    assert (answer["tokens"], answer["stop_reason"]) == (greedy[:first], "stop")


def test_clients_of_several_shapes_train_beside_each_other_as_if_alone(client, server):
    shapes = [{"rank": 4}, {"rank": 2, "train_mlp": False}]

    def alone(lora: dict[str, Any]) -> list[float]:
        own = Client(server.root)
        model = own.create(**lora)
        for _ in range(2):
            own.loss(model)
            own.step(model)
        found = own.learnt(model)
        sampler = own.sampler(model)
        scored = own.sample(sampler, prompt_logprobs=True)["prompt_logprobs"][1:]
        assert scored == pytest.approx(found, abs=1e-4)
        own.post(f"sessions/{own.session}/finish")
        return found

    one_by_one = [alone(lora) for lora in shapes]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(alone, shapes))
    assert together == [pytest.approx(each, abs=1e-5) for each in one_by_one]
    assert one_by_one[0] != pytest.approx(one_by_one[1], abs=1e-3)
    assert server.service.adapter_count == 0


def test_requests_sent_out_of_order_and_twice_are_done_once_in_order(client):
    model = client.create()
    message = loss_message(TOKENS[:-1], target_tokens=TOKENS[1:])
    message.model_id, message.loss_fn = model, "cross_entropy"
    step = client.post("optim_step", model_id=model, seq_id=3, adam_params={"learning_rate": 1e-2})
    promised = []
    for number in (2, 1, 1):
        message.seq_id = number
        promised.append(client.send(message))
    assert promised[1] == promised[2]
    answers = [client.loss_result(each) for each in promised]
    assert answers[0] == answers[1]
    assert client.result(step)["metrics"]["grad_norm:mean"] > 0
    assert client.http.post("optim_step", json={"model_id": model, "seq_id": 2}).json() == promised[0]
    client.numbers[model] = 3
    assert client.learnt(model) != pytest.approx(answers[0]["logprobs"], abs=1e-3)


def test_a_failing_request_leaves_gradients_as_they_were(client):
    norms = []
    for failing in (False, True):
        model = client.create()
        client.loss(model)
        if failing:
            far = client.loss(model, loss="importance_sampling", logprobs=[-200.0] * 5, advantages=[1.0] * 5)
            assert "the loss is not finite" in far["error"]
            assert "must be 0 or more" in client.do("optim_step", model, adam_params={"learning_rate": -1.0})["error"]
        norms.append(client.step(model)["metrics"]["grad_norm:mean"])
    assert norms[0] == norms[1]


@pytest.mark.parametrize(
    ("path", "body", "status", "complaint"),
    [
        ("optim_step", {"model_id": "nobody"}, 404, "no model 'nobody' in training here"),
        ("get_info", {}, 400, "model_id"),
        ("session_heartbeat", {"session_id": "gone"}, 410, "no session 'gone'"),
        ("asample", {"prompt": {"chunks": []}}, 400, "needs a sampling_session_id"),
        ("asample", {"prompt": {"chunks": []}, "num_samples": 10**9}, 400, "num_samples"),
        ("retrieve_future", {"request_id": "x"}, 410, "no request 'x' any more"),
        ("create_sampling_session", {"model_path": "tinker://a/weights/../x"}, 404, "no weights at"),
        ("create_sampling_session", {"base_model": "other"}, 400, "'other' is not served here"),
        ("forward_backward", {"model_id": "m"}, 415, "send the data as application/x-protobuf"),
    ],
)
def test_a_request_that_cannot_be_done_is_refused_in_one_line(client, path, body, status, complaint):
    if path == "create_sampling_session":
        body = body | {"session_id": client.session, "sampling_session_seq_id": 0}
    response = client.http.post(path, json=body)
    assert (response.status_code, complaint in response.json()["detail"]) == (status, True), response.text


def test_bad_models_and_names_fail_their_request(client):
    body = {"session_id": client.session, "base_model": "tiny"}
    for wrong, complaint in (
        ({"base_model": "other"}, "'other' is not served here"),
        ({"lora_config": {"rank": 4096}}, "above 128, the largest one here (max_rank)"),
        ({"lora_config": {"train_attn": False, "train_mlp": False}}, "the output head alone"),
        ({"optimizer_config": {"type": "dimuon"}}, "'dimuon' is not served here"),
    ):
        client.models += 1
        found = client.result(client.post("create_model", **body | wrong, model_seq_id=client.models))
        assert complaint in found["error"]
        assert found["category"] == "user"
    client.models += 1
    model = client.create()
    for name in ("../out", ".hidden", "a/b", "", "x" * 200):
        assert "cannot be named" in client.do("save_weights", model, path=name)["error"]
    assert "ttl_seconds" in client.do("save_weights", model, path="short", ttl_seconds=5)["error"]
    sampler = client.sampler(model)
    assert "outside 0.." in client.sample(sampler, prompt=[10**6])["error"]
    assert "the context holds 512" in client.sample(sampler, prompt=[1] * 600)["error"]


def test_a_client_that_goes_away_leaves_its_place_and_no_trace(server):
    gone = [Client(server.root) for _ in range(2)]
    models = [each.create() for each in gone for _ in range(2)]
    late = Client(server.root)
    body = {"session_id": late.session, "model_seq_id": 0, "base_model": "tiny"}
    assert "max_trained_adapters" in late.result(late.post("create_model", **body))["error"]
    for each, model in zip(gone, models[::2], strict=True):
        each.post("optim_step", model_id=model, seq_id=7)  # waits for others that never come
    for each in gone:
        late.post(f"sessions/{each.session}/finish")
    late.models = 1
    assert late.learnt(late.create())
    assert gone[0].http.post("optim_step", json={"model_id": models[0]}).status_code == 404
    late.post(f"sessions/{late.session}/finish")
    assert server.service.adapter_count == 0
    assert len(server.service.promises) == 0


def test_a_key_is_needed_and_a_request_that_does_not_arrive_gives_up_its_place(tmp_path):
    server = start(tmp_path, api_keys=["tml-secret"], limits=RequestLimits(max_body_seconds=0.2))
    assert httpx.post(f"{server.root}/api/v1/create_session", json={"tags": []}).status_code == 401
    assert Client(server.root, key="tml-secret").post("create_session", tags=[])["session_id"]
    with socket.create_connection(("127.0.0.1", server.port), 20) as slow:
        head = b"POST /api/v1/retrieve_future HTTP/1.1\r\nHost: localhost\r\nx-api-key: tml-secret\r\n"
        slow.sendall(head + b"Content-Length: 9\r\n\r\n{")
        assert slow.recv(4096).startswith(b"HTTP/1.1 408")
    server.stop()
