"""Programs that stand around an agent's command: they need the standard library alone, and nothing of this package.

`supervisor` starts a command, bounds it and ends all that it has started; `confine`, `landlock` and `seccomp` are what
it does to the command's process before it runs; `inside` is the first program within a sandbox of namespaces or a
container; `imports` is read by every Python of a test command.
"""
