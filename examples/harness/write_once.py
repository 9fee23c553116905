"""An agent of one call, in the standard library alone: the code of the model's answer becomes solution.py."""

import json
import os
import pathlib
import re
import urllib.request

task = json.loads(pathlib.Path(os.environ["TASK_FILE"]).read_text())
body = {
    "model": os.environ["OPENAI_MODEL"],
    "messages": [{"role": "user", "content": task["prompt"]}],
    "max_tokens": int(os.environ["MODEL_MAX_TOKENS"]),
    "temperature": float(os.environ["MODEL_TEMPERATURE"]),
}
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(),
    {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
)
reply = json.load(urllib.request.urlopen(request))
answer = reply["choices"][0]["message"]["content"] or ""
fenced = re.search(r"```(?:python)?\n(.*?)(```|$)", answer, re.DOTALL)
pathlib.Path("solution.py").write_text(fenced[1] if fenced else answer)
print(answer)
