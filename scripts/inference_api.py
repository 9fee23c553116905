"""Serve a reward model's scores over HTTP (`POST /score`, `/score-pair`): the command `mini-agentic-rl score-server`.

python scripts/inference_api.py --model_path outputs/reward-model --port 8001
"""

from mini_agentic_rl.integrations.hello_agents.script import run_script

if __name__ == "__main__":
    run_script("score-server", names={"model_path": "model"})
