"""The gateway: an OpenAI-compatible endpoint in front of a model, which records every token that it serves.

One chat request, from its arrival to its answer:

1.  It arrives at `MiniLLMServer` (`http/server.py`), at the path of a dialect (`http/routes.py`), which is served as it
    is and below the URL of each attempt: `/rollout/{rollout_id}/attempt/{attempt_id}/v1/…`.
2.  It is admitted: API key, rate, concurrency, a pause while the weights are updated (`mini_agentic_rl.http`).
3.  Its dialect turns it into the body of a chat request (`dialects/`: chat completions, responses, Anthropic messages).
4.  The body is checked: `ChatRequest` (`dialects/chat.py`).
5.  It is made ready (`completion/prepare.py`): its attempt is looked up (`completion/attempts.py`), and it is rendered
    to token ids by its chat template (`render/`), continuing from the ids of earlier calls where the conversation goes
    on (`completion/remember.py`),
6.  constrained where a JSON schema or a tool's promise demands it (`constraints/`),
7.  and held to what its attempt may still ask for (`limits.py`).
8.  It is sampled (`completion/sample.py`) by a `Sampler`: token ids in, token ids out (`mini_agentic_rl.samplers`).
9.  Its tokens are read as they come (`completion/read.py`): text, thought (`render/thinking.py`) and tool calls
    (`tool_formats/`).
10. Its answer is recorded: one span with the exact tokens and log-probabilities, in the store before the answer is
    complete at the agent (`completion/record.py`).
11. It is remembered, so that the next call goes on from its ids (`completion/remember.py`); prompts that do not are
    counted by their reason (`PromptCounters`).
12. It is answered, whole or as server-sent events (`completion/answer.py`), in the words of its dialect.

Text stops at the sampler: what stands below knows token ids only. `ServedPolicy` is a policy, and what samples from it,
behind this server.
`LLMProxy` (`proxy/`) is the same endpoint over servers of others: it shares 1 to 3, 10 and the dialects, and hands the
request on instead of sampling.

Everything here is loaded when it is asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
