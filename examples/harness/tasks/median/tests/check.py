"""Give half a point for each of two checks, each in a process of its own: what the agent wrote cannot end this one."""

import os
import subprocess
import sys

CHECKS = ["median([1, 2, 3, 10]) == 2.5", "median([3, 1, 2]) == 2 and median([4]) == 4"]

passed = 0
for check in CHECKS:
    code = f"from stats import median; print('held' if {check} else 'failed')"
    passed += subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "held\n"
with open(os.environ["REWARD_FILE"], "w") as file:
    file.write(str(passed / len(CHECKS)))
