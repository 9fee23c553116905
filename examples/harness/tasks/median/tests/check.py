"""Give half a point for each of two checks. Each runs in a process of its own, which what the agent wrote can end, and
only prints values: they are compared here."""

import os
import subprocess
import sys

CHECKS = {"median([1, 2, 3, 10])": [2.5], "median([3, 1, 2]), median([4])": [2.0, 4.0]}

passed = 0
for calls, expected in CHECKS.items():
    code = f"from stats import median; print({calls})"
    words = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.split()
    try:
        passed += [float(word) for word in words] == expected
    except ValueError:  # no numbers: the check fails
        continue
with open(os.environ["REWARD_FILE"], "w") as file:
    file.write(str(passed / len(CHECKS)))
