"""The attacked servers as programs for `served`, and requests that they take."""

from __future__ import annotations

from typing import Any, Final


def _program(source: str) -> str:
    """Return a program that prints `url` and then waits for the end of its input."""
    return (
        f'import asyncio, json, sys\nsys.path.insert(0, "tests")\n{source}\nprint(url, flush=True)\nsys.stdin.read()\n'
    )


GATEWAY: Final = _program("""
from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.store import InMemoryLightningStore
tokenizer = small_tokenizer(CHATML_TOOLS)
sampler = ScriptedSampler(tokenizer, ["ok"], context_length=int(sys.argv[1]) if len(sys.argv) > 1 else 32768)
server = MiniLLMServer(sampler, tokenizer, model_name="tiny", store=InMemoryLightningStore()).start()
url = server.root
""")
"""A gateway whose model says "ok" at once; its argument is the context's length in tokens."""

SESSIONS: Final = _program("""
from gateway.scripted import ScriptedSampler
from gateway.small_tokenizer import CHATML_TOOLS, small_tokenizer
from mini_agentic_rl.gateway import SessionSettings
from mini_agentic_rl.gateway.http.server import MiniLLMServer
from mini_agentic_rl.store import SqlLightningStore
tokenizer = small_tokenizer(CHATML_TOOLS)
sampler = ScriptedSampler(tokenizer, ["ok"], context_length=32768)
server = MiniLLMServer(sampler, tokenizer, model_name="tiny", store=SqlLightningStore(sys.argv[1]),
                       api_keys=["alice", "bob"], sessions=SessionSettings()).start()
url = server.root
""")
"""A gateway that keeps sessions of two keys, alice and bob; its argument is the file of its store."""

MODEL: Final = _program("""
from gateway.tiny_server import tiny_server
from mini_agentic_rl.gateway import GatewayLimits
options = json.loads(sys.argv[1])
server = tiny_server(**options, limits=GatewayLimits(max_grammar_seconds=0.5))
url = server.__enter__().server.endpoint + "/chat/completions"
""")
"""A gateway on a tiny model, by the URL of its chat completions; its argument is the options of `tiny_server`."""

STORE: Final = _program("""
from mini_agentic_rl.store import InMemoryLightningStore, LightningStoreServer, SqlLightningStore
store = SqlLightningStore(sys.argv[1]) if len(sys.argv) > 1 else InMemoryLightningStore()
server = LightningStoreServer(store, port=0)
asyncio.run(server.start())
url = server.endpoint
""")
"""A store in memory, or in the SQLite file that is its argument."""

SCORES: Final = _program("""
from apps.reward_service.scorers import reward_model
from mini_agentic_rl.apps.reward_service import ScoreServer
server = ScoreServer(reward_model()).start()
url = server.root
""")

PROXY: Final = _program("""
from mini_agentic_rl.gateway import LLMProxy
upstream = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:9/v1"
proxy = LLMProxy(model_list=[{"model_name": "tiny", "base_url": upstream, "api_key": "paid"}], num_retries=0)
asyncio.run(proxy.start())
url = proxy.endpoint.removesuffix("/v1")
""")

RECORDING_PROXY: Final = _program("""
from mini_agentic_rl.gateway import LLMProxy
from mini_agentic_rl.store import InMemoryLightningStore
store = InMemoryLightningStore()
rollout = asyncio.run(store.start_rollout({}))
model = {"model_name": "tiny", "base_url": sys.argv[1], "token_ids": "vllm", "timeout": 60}
proxy = LLMProxy(model_list=[model], store=store, num_retries=0)
asyncio.run(proxy.start())
url = f'{proxy.endpoint.removesuffix("/v1")} /rollout/{rollout.rollout_id}/attempt/{rollout.attempt.attempt_id}'
""")
"""A proxy with a store and one attempt: it prints its URL and the attempt's path; its argument is the upstream."""

TINKER: Final = _program("""
import tempfile
from pathlib import Path
from mini_agentic_rl.http import RequestLimits
from mini_agentic_rl.integrations.tinker import ClientSettings, TinkerServer
from tiny import tiny_model, tiny_tokenizer
tokenizer = tiny_tokenizer()
folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
server = TinkerServer.load(tiny_model(len(tokenizer)), folder, tokenizer=tokenizer, names=["tiny"],
                           load={"dtype": "float32"}, api_keys=sys.argv[2:],
                           limits=RequestLimits(max_body_bytes=64 * 2**20),
                           clients=ClientSettings(retrieve_seconds=5, max_trained_adapters=32, gap_seconds=0.5)).start()
url = server.root
""")
"""A server of the Tinker API; its arguments are its folder, and keys."""

UPSTREAM: Final = _program("""
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
message = {"role": "assistant", "content": "ok"}
answer = {"id": "c", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/v1"
""")
"""A server of others that says "ok" to anything."""


def question(text: str = "Hi?", **fields: object) -> dict[str, Any]:
    """Return the body of a chat completion."""
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 1, **fields}


CHAT: Final[dict[str, Any]] = {"model": "tiny", "messages": [{"role": "user", "content": "12+30?"}]}
