"""Our readers of foreign text under atheris, which looks for inputs that reach new code; `test_fuzzing.py` runs it.

python fuzz_readers.py -max_total_time=60        # libFuzzer's options
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(
    include=["mini_agentic_rl.tools", "mini_agentic_rl.rewards", "mini_agentic_rl.gateway"]
):
    from mini_agentic_rl.gateway.render.decoding import AnswerReader, ThoughtScanner, default_tags
    from mini_agentic_rl.gateway.tool_formats import FORMATS, ToolCall, split_tool_calls
    from mini_agentic_rl.rewards.extract import extract_answer, extract_option
    from mini_agentic_rl.rewards.values import clean, parse_value
    from mini_agentic_rl.tools import calculate


def read(data: bytes) -> None:
    """Read one input as everything that it may be; what raises is a finding, and so is what takes 10 s."""
    text = atheris.FuzzedDataProvider(data).ConsumeUnicode(sys.maxsize)
    answer = calculate(text)
    if not answer.startswith("error: "):
        float(answer)
    extract_answer(text, units=True)
    extract_option(text)
    parse_value(clean(text))
    for form in FORMATS:
        content, calls = split_tool_calls(form, text)
        scanner = form.scanner()
        parts = [part for char in text for part in scanner.feed(char)] + scanner.finish()
        if "".join(part for part in parts if isinstance(part, str)) != content:
            raise AssertionError(f"{form.name}: the content depends on how the text was cut")
        if len([part for part in parts if isinstance(part, ToolCall)]) != len(calls):
            raise AssertionError(f"{form.name}: the calls depend on how the text was cut")
    reader = AnswerReader(ThoughtScanner(default_tags()), FORMATS[0].scanner())
    reader.feed(text)
    reader.finish()


if __name__ == "__main__":
    atheris.Setup([*sys.argv, "-timeout=10", "-rss_limit_mb=2048", "-max_len=4096"], read)
    atheris.Fuzz()
