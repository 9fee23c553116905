"""Programs around an agent's command. They import only the standard library.

`supervisor` starts a command, enforces its limits and kills its processes; `confine`, `landlock` and `seccomp` restrict
the command's process before it runs; `inside` is the first program in a sandbox of namespaces or a container; `imports`
is loaded by every Python of a test command.
"""
