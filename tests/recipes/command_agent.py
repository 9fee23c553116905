"""An agent as a program of its own, in the standard library alone: it asks once, and writes down what was said."""

import json
import os
import pathlib
import urllib.request

task = json.loads(pathlib.Path(os.environ["TASK_FILE"]).read_text())
body = {
    "model": os.environ["OPENAI_MODEL"],
    "messages": [{"role": "user", "content": task["prompt"]}],
    "max_tokens": int(os.environ.get("MODEL_MAX_TOKENS", "4")),
}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
with urllib.request.urlopen(request) as response:
    answer = json.load(response)["choices"][0]["message"]["content"] or ""
pathlib.Path("answer.txt").write_text(answer)
print(len(answer), "characters")
