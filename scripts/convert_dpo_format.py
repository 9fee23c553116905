"""Raw preferences of any common shape into chat preferences: the command `mini-agentic-rl convert-dpo`.

python scripts/convert_dpo_format.py --input=raw.jsonl --output=converted.jsonl
"""

from mini_agentic_rl.integrations.hello_agents.script import run_script

if __name__ == "__main__":
    run_script("convert-dpo")
