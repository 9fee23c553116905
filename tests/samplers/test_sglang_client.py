"""SGLang's `/generate`, by its published form: all tokens so far in each event, or the new ones alone."""

from __future__ import annotations

import json

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from mini_agentic_rl.http import Admission, AdmittingServer, RequestLimits
from mini_agentic_rl.samplers.clients import Generation, ReplicaLostError, SglangClient
from mini_agentic_rl.tokens import SamplingParams

TOLD = [[-0.5, 11, None], [-1.5, 12, None], [-0.25, 13, None]]


class SglangServer:
    def __init__(self, *, cumulative: bool, ends: bool = True) -> None:
        self.bodies: list[dict] = []
        app = FastAPI()

        @app.post("/generate")
        async def generate(request: Request) -> StreamingResponse:
            self.bodies.append(await request.json())

            async def events():
                for count in range(1, 4):
                    told = TOLD[:count] if cumulative else TOLD[count - 1 : count]
                    reason = {"type": "stop", "matched": 13} if count == 3 and ends else None
                    meta = {"output_token_logprobs": told, "completion_tokens": count, "finish_reason": reason}
                    yield f"data: {json.dumps({'text': '', 'meta_info': meta})}\n\n"
                yield "data: [DONE]\n\n"

            return StreamingResponse(events(), media_type="text/event-stream")

        self.thread = AdmittingServer(app, Admission(RequestLimits()), "127.0.0.1", 0, "test SGLang").start()

    async def chunks(self):
        asked = Generation("m", "policy@v3", (1, 2, 3), SamplingParams(max_tokens=8, seed=1 << 40), "salt")
        client = SglangClient(self.thread.root)
        async with client.http:
            return [chunk async for chunk in client.stream(asked)]


@pytest.mark.parametrize("cumulative", [True, False])
async def test_each_token_comes_once_however_the_server_tells_them(cumulative):
    server = SglangServer(cumulative=cumulative)
    try:
        chunks = await server.chunks()
        assert [token for chunk in chunks for token in chunk.token_ids] == [11, 12, 13]
        assert [value for chunk in chunks for value in chunk.logprobs] == [-0.5, -1.5, -0.25]
        assert [chunk.finish_reason for chunk in chunks] == [None, None, "stop"]
        (body,) = server.bodies
        assert body["input_ids"] == [1, 2, 3]
        assert body["lora_path"] == "policy@v3"
        assert body["sampling_params"]["max_new_tokens"] == 8
    finally:
        server.thread.stop(0.0)


async def test_an_answer_without_an_end_is_a_lost_server():
    server = SglangServer(cumulative=True, ends=False)
    try:
        with pytest.raises(ReplicaLostError, match="broke off"):
            await server.chunks()
    finally:
        server.thread.stop(0.0)
