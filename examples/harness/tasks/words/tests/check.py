"""End with 0 if both checks hold, in a process that what the agent wrote cannot end."""

import subprocess
import sys

CODE = "from words import count_words; print(count_words('one  two'), count_words(''))"
sys.exit(subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True).stdout != "2 0\n")
