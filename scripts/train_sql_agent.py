"""Train the SQL agent on the medical database: the command `mini-agentic-rl train-sql`.

    python scripts/train_sql_agent.py --ci-fast
    python scripts/train_sql_agent.py --llm-proxy --model Qwen/Qwen3-0.6B --max_samples 500

With a store server of its own, and each runner a process of its own:

    agl store --port 9999
    AGL_MANAGED_STORE=0 python scripts/train_sql_agent.py --ci-fast --external-store-address http://localhost:9999

The data are invented; nothing in them is medical advice. Each run replaces the one in its output folder, unless
`--resume` goes on with it.
"""

import sys

from mini_agentic_rl.integrations.hello_agents.script import run_script

if __name__ == "__main__":
    new = [] if "--resume" in sys.argv else ["--overwrite"]
    run_script(
        "train-sql",
        names={"model_path": "model"},
        computed={"overwrite": "given, unless --resume is"},
        arguments=[*sys.argv[1:], *new],
    )
