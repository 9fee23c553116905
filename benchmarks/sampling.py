"""Measure sampling over HTTP: many chat requests at once that share a long system prompt (W3).

python benchmarks/sampling.py                                        # against padded transformers.generate
python benchmarks/sampling.py --peers padded continuous              # and transformers' continuous batching
python benchmarks/sampling.py --url http://127.0.0.1:8000/v1 --url-model NAME     # and any OpenAI-compatible server
python benchmarks/sampling.py --requests 32 --samples 8 --system-tokens 350 --new-tokens 64    # four groups, as in W1

Every side samples exactly the same number of new tokens for the same messages. Ours and other servers are asked over
HTTP by the OpenAI SDK; transformers is called in a process of its own, without a server, which is to its advantage.
Sides take turns; the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import Any

from openai import AsyncOpenAI, OpenAI
from rich.console import Console
from rich.table import Table

from output import add_model_options, deliver, make_parser, tell

OURS = "mini-agentic-rl, HTTP"
TRANSFORMERS = """
import json, sys, time
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, logging
from mini_agentic_rl.policy import resolve_device, resolve_dtype, resolve_model

kind, model, device, dtype, new = sys.argv[1:6]
model, where, new = resolve_model(model), resolve_device(device), int(new)
tokenizer = AutoTokenizer.from_pretrained(model)
net = AutoModelForCausalLM.from_pretrained(model, dtype=resolve_dtype(dtype, where)).to(where).eval()
logging.set_verbosity_error()  # about the end token that there is not, since every answer has the same length
print("{}", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    prompts = [tokenizer.apply_chat_template(m, add_generation_prompt=True, return_dict=False) for m in asked]
    lengths = {"max_new_tokens": new, "min_new_tokens": new}
    config = GenerationConfig(**lengths, do_sample=True, eos_token_id=-1, pad_token_id=tokenizer.pad_token_id or 0)
    started = time.perf_counter()
    if kind == "continuous":
        found = net.generate_batch(prompts, generation_config=config, progress_bar=False)
        sampled = sum(len(output.generated_tokens) for output in found.values())
    else:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=where)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=where)
        with torch.no_grad():
            found = net.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        sampled = found.shape[0] * (found.shape[1] - width)
    print(json.dumps({"tokens": sampled, "seconds": time.perf_counter() - started}), flush=True)
"""


def conversations(options: argparse.Namespace, round_number: int) -> list[list[dict[str, str]]]:
    """Return the requests of a round. They share a system prompt of about `system_tokens` tokens and differ in their
    question; with `samples` each prompt is asked so often, and shares nothing with the others, as groups of GRPO do.
    Each round has prompts of its own, so that nothing is cached from the one before."""

    def conversation(session: str, question: int) -> list[dict[str, str]]:
        system = f"Session {session}. You answer questions about the rules below."
        return [
            {"role": "system", "content": system + " the rule" * (options.system_tokens // 2)},
            {"role": "user", "content": f"Question {question}: what follows from rule {question}?"},
        ]

    if not options.samples:
        return [conversation(str(round_number), n) for n in range(options.requests)]
    groups = (n // options.samples for n in range(options.requests))
    return [conversation(f"{round_number}, group {group}", group) for group in groups]


async def ask(url: str, model: str, key: str, asked: list[Any], new: int) -> tuple[int, float]:
    """Tokens sampled and seconds taken by all requests at once."""
    async with AsyncOpenAI(base_url=url, api_key=key, timeout=1800, max_retries=0) as client:

        async def one(messages: Any) -> int:
            answer = await client.chat.completions.create(
                model=model, messages=messages, max_tokens=new, temperature=1.0, extra_body={"ignore_eos": True}
            )
            return answer.usage.completion_tokens if answer.usage else 0

        started = time.perf_counter()
        sampled = await asyncio.gather(*(one(messages) for messages in asked))
        return sum(sampled), time.perf_counter() - started


@contextmanager
def our_server(options: argparse.Namespace) -> Any:
    """The address of our server in a process of its own."""
    command = [sys.executable, "-m", "mini_agentic_rl", "serve", "--model", options.model, "--port", "0"]
    command += ["--device", options.device, "--dtype", options.dtype]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        yield next(word.rstrip(".,") for line in process.stdout for word in line.split() if word.startswith("http://"))
    finally:
        process.terminate()
        process.communicate()


@contextmanager
def transformers_process(kind: str, options: argparse.Namespace) -> Any:
    """Start a process of transformers; yield a function from conversations to tokens and seconds."""
    arguments = [kind, options.model, options.device, options.dtype, str(options.new_tokens)]
    process = subprocess.Popen(
        [sys.executable, "-c", TRANSFORMERS, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def answer() -> Any:
        line = next((line for line in stdout if line.startswith("{")), None)
        if line is None:
            raise SystemExit(f"transformers ({kind}) ended early; see its error above")
        return json.loads(line)

    answer()  # it has loaded, and so takes nothing from the other sides

    def generate(asked: list[Any]) -> tuple[int, float]:
        stdin.write(json.dumps(asked) + "\n")
        stdin.flush()
        found = answer()
        return found["tokens"], found["seconds"]

    try:
        yield generate
    finally:
        process.terminate()
        process.communicate()


def measure_all(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each side."""
    with ExitStack() as stack:
        base = stack.enter_context(our_server(options))
        url = base if base.endswith("/v1") else base.rstrip("/") + "/v1"
        served_as = OpenAI(base_url=url, api_key="none").models.list().data[0].id
        sides: dict[str, Any] = {
            OURS: lambda asked: asyncio.run(ask(url, served_as, "none", asked, options.new_tokens))
        }
        if options.url:
            sides[options.url] = lambda asked: asyncio.run(
                ask(options.url, options.url_model, options.url_key, asked, options.new_tokens)
            )
        for kind in options.peers:
            sides[f"transformers, {kind}"] = stack.enter_context(transformers_process(kind, options))
        found: dict[str, list[tuple[int, float]]] = {name: [] for name in sides}
        for number in range(options.rounds):
            for name, side in sides.items():
                tokens, seconds = side(conversations(options, number))
                found[name].append((tokens, seconds))
                tell(f"{name}, round {number + 1} of {options.rounds}: {tokens:,} tokens in {seconds:.1f} s")
    wanted = options.requests * options.new_tokens
    return [
        {
            "side": name,
            "tokens": statistics.median(tokens for tokens, _ in results),
            "complete": all(tokens == wanted for tokens, _ in results),
            "seconds": statistics.median(seconds for _, seconds in results),
            "tokens_per_second": statistics.median(tokens / seconds for tokens, seconds in results),
        }
        for name, results in found.items()
    ]


def report(console: Console, rows: list[dict[str, Any]]) -> None:
    table = Table(title="Chat requests at once")
    for name in ("", "new tokens", "seconds", "new tokens/s"):
        table.add_column(name, justify="right" if name else "left")
    for row in rows:
        table.add_row(row["side"], f"{row['tokens']:,.0f}", f"{row['seconds']:.1f}", f"{row['tokens_per_second']:.0f}")
    console.print(table)
    for row in rows:
        if not row["complete"]:
            console.print(f"{row['side']} ended some answers early: its rate is of what it sampled", style="yellow")
    for row in rows[1:]:
        ratio = rows[0]["tokens_per_second"] / row["tokens_per_second"]
        console.print(f"tokens/s: ours / {row['side']}: {ratio:.2f}", highlight=False)


def main() -> None:
    parser = make_parser(__doc__)
    add_model_options(parser)
    parser.add_argument("--requests", type=int, default=64, help="requests at once")
    parser.add_argument("--samples", type=int, default=0, help="samples of each prompt; 0: one prompt for each request")
    parser.add_argument("--system-tokens", type=int, default=1000, help="tokens of the system prompt, about")
    parser.add_argument("--new-tokens", type=int, default=128, help="sampled tokens of each request")
    parser.add_argument("--peers", nargs="*", choices=["padded", "continuous"], default=["padded"], help="other sides")
    parser.add_argument("--url", default=None, help="base URL of another OpenAI-compatible server")
    parser.add_argument("--url-model", default="default", help="model name there")
    parser.add_argument("--url-key", default="none", help="key for it")
    parser.add_argument("--rounds", type=int, default=1, help="measurements of each side, in turns")
    options = parser.parse_args()
    rows = measure_all(options)
    deliver(options, rows, report)


if __name__ == "__main__":
    main()
