"""Talk to a trained model: the command `mini-agentic-rl chat`.

python scripts/test_interactive.py --model_path outputs/rl/epoch_3 --max_new_tokens 256 --temperature 0.7
"""

from mini_agentic_rl.integrations.hello_agents.script import run_script

if __name__ == "__main__":
    run_script("chat", names={"model_path": "model"})
