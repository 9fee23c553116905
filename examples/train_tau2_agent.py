"""Train a customer-service assistant on tau2-bench: a simulated customer, a domain's tools and policy, its evaluator.

    pip install "mini-agentic-rl[tau2]"
    python examples/train_tau2_agent.py --domain mock --steps 2
    python examples/train_tau2_agent.py --domain airline --model Qwen/Qwen3-4B \\
        --user-model gpt-4.1 --user-base-url https://api.openai.com/v1 --user-api-key $OPENAI_API_KEY

The assistant is trained. The customer is played by another model and stays as it is; without --user-model, the model
that the training began with plays it. Nothing is asked of the internet unless an endpoint of yours is there.

Mind the length. Before the first word, the assistant's prompt holds the domain's policy and the schemas of its tools:
with the tokenizer of the embedded model 540 tokens for mock, 4,500 for airline and retail, 7,400 for telecom. The
embedded model reads 8,192 tokens, which leaves 3,600 for a conversation in airline and 770 in telecom: play mock with
it. An episode that outgrows the model's context ends with reward 0; a context that is too short for the first prompt is
an error that names both lengths.
"""

from __future__ import annotations

import argparse
import json

from mini_agentic_rl import LLM, LoggingHook, MiniGRPO, NamedResources, Trainer
from mini_agentic_rl.policy import LearnerSettings
from mini_agentic_rl.recipes.tau2 import DOMAINS, Tau2Agent, load_tau2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="what is trained: embedded, a folder, or a Hugging Face id")
    parser.add_argument("--domain", default="airline", choices=DOMAINS, help="mock is for trying things out")
    parser.add_argument("--train-split", default="train", help="tasks to train on; the suite names its splits")
    parser.add_argument("--test-split", default="test", help="tasks to measure on")
    parser.add_argument("--steps", type=int, default=15, help="reinforcement-learning steps")
    parser.add_argument("--tasks-per-step", type=int, default=4, help="tasks drawn in each step")
    parser.add_argument(
        "--samples-per-prompt", type=int, default=8, help="episodes of each task, compared with each other"
    )
    parser.add_argument("--eval-size", type=int, default=None, help="test tasks that measure it; all by default")
    parser.add_argument("--max-steps", type=int, default=60, help="messages of an episode, those of tools included")
    parser.add_argument("--max-tokens", type=int, default=None, help="length of the assistant's conversation")
    parser.add_argument("--max-new-tokens", type=int, default=512, help="length of one answer of the assistant")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--rollout-timeout", type=float, default=1800.0, help="seconds that an episode may take")
    parser.add_argument("--runners", type=int, default=32, help="episodes at a time")
    parser.add_argument("--user-model", default=None, help="plays the customer; the base model by default")
    parser.add_argument("--user-base-url", default=None, help="OpenAI-compatible endpoint of --user-model")
    parser.add_argument("--user-api-key", default=None)
    parser.add_argument("--user-sampling", type=json.loads, default={}, help='JSON, as in {"temperature": 0.7}')
    parser.add_argument("--output-dir", default=None, help="folder for checkpoints and the adapter")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    resources: NamedResources = {}
    if (options.user_model is None) != (options.user_base_url is None):
        parser.error("--user-model and --user-base-url go together")
    if options.user_model is not None:
        resources["user_llm"] = LLM(
            model=options.user_model,
            endpoint=options.user_base_url,
            api_key=options.user_api_key,
            sampling_parameters=options.user_sampling,
        )

    algorithm = MiniGRPO(
        options.model,
        total_steps=options.steps,
        tasks_per_step=options.tasks_per_step,
        samples_per_prompt=options.samples_per_prompt,
        max_new_tokens=options.max_new_tokens,
        eval_size=options.eval_size,
        rollout_timeout=options.rollout_timeout,
        seed=options.seed,
        learner=LearnerSettings(learning_rate=options.learning_rate),
    )
    trainer = Trainer(
        algorithm=algorithm,
        agent=Tau2Agent(max_steps=options.max_steps, max_tokens=options.max_tokens),
        hooks=[LoggingHook()],
        n_runners=options.runners,
        initial_resources=resources or None,
        output_dir=options.output_dir,
    )
    train, test = (load_tau2(options.domain, split) for split in (options.train_split, options.test_split))
    trainer.fit(train, val_dataset=test)
    for row in algorithm.summary["accuracy"]:
        print(f"{row['name']:>10}: {row['correct']} of {row['count']}")
    for reason, count in algorithm.summary["untrained"].items():
        print(f"{count} episodes not trained: {reason}")


if __name__ == "__main__":
    main()
