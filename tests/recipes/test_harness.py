"""Agents that are commands: their sandbox, their limits, what they must not touch, and what they are worth."""

from __future__ import annotations

import asyncio
import math
import os
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from mini_agentic_rl.commands.tasks import TaskSettings, load_agent
from mini_agentic_rl.environments import Endpoint
from mini_agentic_rl.errors import UserError
from mini_agentic_rl.recipes.harness import Ended, HarnessAgent, HarnessError, HarnessResult, HarnessSettings
from mini_agentic_rl.recipes.harness.process import ProcessSandbox, run_supervised
from mini_agentic_rl.recipes.harness.programs import landlock, seccomp
from mini_agentic_rl.recipes.harness.programs.supervisor import FolderSize
from mini_agentic_rl.recipes.harness.run import HarnessRun
from mini_agentic_rl.recipes.harness.sandbox import SandboxLimits, Scratch, remove_tree
from mini_agentic_rl.tracer import OtelTracer
from mini_agentic_rl.types import LLM, Rollout
from recipes.playing import ScriptedServer, says, scripted_server

PYTHON = shlex.quote(sys.executable)
AGENT = f"{PYTHON} {shlex.quote(str(Path(__file__).with_name('command_agent.py')))}"
server = scripted_server

pytestmark = pytest.mark.skipif(os.name != "posix", reason="commands as agents need Linux or macOS: left unchecked")
needs_landlock = pytest.mark.skipif(
    landlock.version() < landlock.SCOPE_VERSION, reason="no Landlock 6 here: what a process must not do is unchecked"
)
SANDBOXES = [
    pytest.param("process", id="process", marks=needs_landlock),
    pytest.param(
        "bubblewrap",
        id="bubblewrap",
        marks=pytest.mark.skipif(
            shutil.which("bwrap") is None, reason="bubblewrap is not installed: its sandbox is left unchecked"
        ),
    ),
]
SLEEP = str(1_000_000 + os.getpid())
"""Seconds by which the processes of this test process are told from those of others."""
Play = Callable[..., tuple[Ended, Scratch]]


@pytest.fixture
def task(tmp_path: Path) -> dict[str, Any]:
    """A task with a file, a test that it shows, a history and hidden tests."""
    folder = tmp_path / "tasks" / "one"
    for name, text in {
        "workspace/median.py": "def median(numbers):\n    return numbers[0]\n",
        "workspace/tests/test_median.py": "seen = 1\n",
        "workspace/.git/config": "history\n",
        "tests/test.sh": f'test "$(cat answer.txt)" = 2 && grep -q hidden {"$TESTS"}/secret\n',
        "tests/secret": "hidden\n",
        "instruction.md": "Write 2.\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return {"id": "one", "question": "Write 2.", "answer": "", "folder": str(folder)}


@pytest.fixture
def play(task: dict[str, Any], tmp_path: Path) -> Iterator[Play]:
    """Run a command on the task, and say how it ended; nothing of it runs afterwards."""
    made: list[Scratch] = []

    def run(command: str, url: str = "http://127.0.0.1:9/v1", **settings: Any) -> tuple[Ended, Scratch]:
        made.append(Scratch(None, "play"))
        played = HarnessRun(HarnessSettings(agent_command=command, **settings), task, Endpoint(url, "m"))
        return asyncio.run(played.agent(made[-1])), made[-1]

    yield run
    for scratch in made:
        scratch.remove()
        assert not scratch.root.exists()


async def finished(task: dict[str, Any], command: str, **settings: Any) -> HarnessResult:
    """What is left after a command that asks nobody, and the tests."""
    scratch = Scratch(None, "finished")
    run = HarnessRun(HarnessSettings(agent_command=command, **settings), task, Endpoint("http://127.0.0.1:9", "m"))
    try:
        return await run.finish(scratch, await run.agent(scratch))
    finally:
        scratch.remove()


def shell(script: str) -> str:
    return f"sh -c {shlex.quote(script)}"


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_a_command_asks_the_model_and_hidden_tests_judge_what_it_left(sandbox, server: ScriptedServer, task):
    server.script = [says("2")]
    endpoint = Endpoint(f"{server.endpoint}", "m", "key", {"max_tokens": 7})
    run = HarnessRun(HarnessSettings(agent_command=AGENT, sandbox=sandbox), task, endpoint)
    scratch = Scratch(None, "whole")
    ended = await run.agent(scratch)
    assert (ended.exit_code, ended.stdout, ended.left_behind) == (0, "1 characters\n", 0), ended.stderr
    assert server.requests == [{"model": "m", "messages": [says("Write 2.") | {"role": "user"}], "max_tokens": 7}]
    assert not (scratch.workspace / ".git").exists()
    result = await run.finish(scratch, ended)
    assert result.tests is not None
    assert (result.tests.exit_code, result.changed, result.tampered) == (0, ["answer.txt"], []), result.tests.stderr
    scratch.remove()


@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_a_confined_command_sees_and_reaches_only_its_own(sandbox, play: Play, task, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_KEY", "mine")
    (tmp_path / "private").write_text("mine")
    for name in ("tool/bin/run", "tool/credentials", "agent/main.sh", "agent/.env"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("echo ran\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/tool/bin:{os.environ['PATH']}")
    other = socket.create_server(("127.0.0.1", 0))
    tried = {
        "hidden tests": f"cat {task['folder']}/tests/secret",
        "file of mine": f"cat {tmp_path}/private",
        "supervisor": "kill -0 $PPID && test $PPID -gt 9",
        "variable": 'test -n "$SECRET_KEY"',
        "environment of mine": f"cat /proc/{os.getpid()}/environ",
        "beside a bin of the PATH": f"cat {tmp_path}/tool/credentials",
        "beside the agent": f"cat {tmp_path}/agent/.env",
        "new file in /": "echo 1 > /new",
        "new file in /dev": "echo 1 > /dev/new",
        "network": f"{PYTHON} -c 'import socket; socket.create_connection((\"127.0.0.1\", {other.getsockname()[1]}))'",
    }
    script = "".join(f"if {command} 2>/dev/null >&2; then echo {name}; fi\n" for name, command in tried.items())
    script += f"(echo 1 > {tmp_path}/outside) 2>/dev/null; run; sh $1; echo ok > made; cat made"
    words = f"{shell(script)} sh {tmp_path}/agent/main.sh"
    ended, scratch = play(words, sandbox=sandbox)
    assert (ended.exit_code, ended.stdout) == (0, "ran\nran\nok\n"), ended.stderr
    assert not (tmp_path / "outside").exists()
    assert (scratch.workspace / "made").read_text() == "ok\n"
    other.close()


@pytest.mark.parametrize("sandbox", SANDBOXES)
async def test_data_and_runs_are_hidden_even_in_a_declared_folder(sandbox, task, tmp_path):
    project = tmp_path / "project"
    for name in ("helper.txt", "tasks.jsonl", "outputs/old/rollouts.db", "outputs/new/config.json"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(name + "\n")
    settings = HarnessSettings(
        agent_command=shell(f"find {project} -type f 2>/dev/null | xargs cat"), agent_paths=[project], sandbox=sandbox
    )
    tasks = TaskSettings(dataset=str(project / "tasks.jsonl"))
    agent = load_agent(tasks, settings, [project / "outputs/new"]).agent  # as the commands load it
    run = HarnessRun(settings, task, Endpoint("http://127.0.0.1:9", "m"), agent._hidden)
    scratch = Scratch(None, "hidden")
    try:
        assert (await run.agent(scratch)).stdout == "helper.txt\n"
    finally:
        scratch.remove()


WAYS_OUT = {
    "data in a SYN": "socket.socket().sendto(b'x', socket.MSG_FASTOPEN, target)",
    "a message in a SYN": "socket.socket().sendmsg([b'x'], [], socket.MSG_FASTOPEN, target)",
    "multipath": "socket.socket(2, 1, 262).connect(target)",
    "UDP": "socket.socket(2, 2).sendto(b'x', target)",
    "raw": "socket.socket(2, 3, 1)",
    "a virtual machine's host": "socket.socket(40, 1)",
    "a socket in the file system": "socket.socket(1, 1)",
    "datagrams to one": "socket.socketpair(1, 2)",
    "being reached": "socket.socket().listen()",
    "a port of its own": "socket.socket().bind(('127.0.0.1', 0))",
    "io_uring": "os.strerror(call(425, 8, bytes(120)) and ctypes.get_errno()) != 'Function not implemented' or 1 / 0",
}


@needs_landlock
def test_a_closed_network_has_no_other_way_out(play: Play):
    other = socket.create_server(("127.0.0.1", 0))
    lines = [
        "import ctypes, os, socket",
        "call = ctypes.CDLL(None, use_errno=True).syscall",
        f"target = ('127.0.0.1', {other.getsockname()[1]})",
        *(f"try: {way}; print({name!r})\nexcept (OSError, ZeroDivisionError): pass" for name, way in WAYS_OUT.items()),
        "socket.socketpair()[0].close()",
        "print('done')",
    ]
    ended, _ = play(f"{PYTHON} -c {shlex.quote(chr(10).join(lines))}")
    assert (ended.exit_code, ended.stdout) == (0, "done\n"), ended.stderr
    other.close()


@needs_landlock
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root: a dropped user is unchecked")
@pytest.mark.parametrize("unreadable", [False, True])
async def test_a_command_of_root_has_no_rights_of_root(unreadable, tmp_path):
    workspace = Path(tempfile.mkdtemp()) / "workspace"
    workspace.mkdir()
    (tmp_path / "closed").mkdir(mode=0o700)
    system = ["/usr", "/bin", "/lib", "/lib64", "/etc", "/proc"]
    readable = [*system, *([str(tmp_path / "closed")] if unreadable else [])]
    files = {"readable": readable, "listable": [], "writable": [str(workspace)], "ports": []}
    (tmp_path / "closed" / "file").write_text("read\n")
    script = "id -u; grep -E 'Cap(Eff|Prm|Amb)' /proc/self/status | tr -d '0\n\t '; "
    script += "echo x > made && cat made > /dev/stdout; "
    if unreadable:
        script += f"cat {tmp_path}/closed/file; chmod 777 {tmp_path}/closed || echo refused"
    limits = SandboxLimits.of(HarnessSettings(), 20.0)
    ended = await run_supervised(
        ["sh", "-c", script], {"PATH": os.defpath}, limits, folders=[workspace], cwd=workspace, files=files
    )
    rights = "CapPrm:4CapEff:4CapAmb:4x\nread\nrefused" if unreadable else "CapPrm:CapEff:CapAmb:x"
    assert ended.stdout == f"65534\n{rights}\n", ended.stderr
    remove_tree(workspace.parent)


def daemon(clean: str = "") -> str:
    """A script that starts a process in a session of its own, and goes on once that runs."""
    return f"{clean} setsid sh -c 'echo > up; exec sleep {SLEEP}' & while [ ! -e up ]; do sleep 0.01; done; "


def sleepers() -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", SLEEP]]


@pytest.mark.parametrize("sandbox", ["process", SANDBOXES[1]])
def test_no_daemon_outlives_its_rollout(sandbox, play: Play):
    ended, _ = play(shell(daemon("env -i")), sandbox=sandbox)
    assert ended.exit_code == 0
    assert ended.left_behind == 1 or sandbox == "bubblewrap"  # there the kernel ends it with its namespace
    assert sleepers() == []


def test_what_kills_its_supervisor_ends_with_its_processes(play: Play, monkeypatch):
    monkeypatch.setattr(ProcessSandbox, "_files", lambda *_: None)  # Landlock would forbid the signal
    with pytest.raises(HarnessError, match="its supervisor was killed; so were all processes with its mark"):
        play(shell(f"{daemon()} kill -9 $PPID; sleep {SLEEP}"))
    assert sleepers() == []


BOUNDS: list[tuple[str, dict[str, Any], str]] = [
    ("sleep 987", {"sandbox_seconds": 0.3}, "sandbox_seconds"),
    (shell("while :; do :; done"), {"sandbox_cpu_seconds": 0.3}, "sandbox_cpu_seconds"),
    (shell("for i in 1 2 3 4 5 6 7 8 9; do sleep 987 & done; wait"), {"sandbox_processes": 4}, "sandbox_processes"),
    (shell("head -c 9000000 /dev/zero > big"), {"sandbox_disk_mib": 4}, "sandbox_disk_mib"),
    ("dd if=/dev/zero of=big bs=9000000 count=1", {"sandbox_file_mib": 4}, "sandbox_file_mib"),
]


@pytest.mark.parametrize(("command", "settings", "limit"), BOUNDS, ids=[limit for *_, limit in BOUNDS])
def test_a_limit_ends_the_command_and_is_named(command, settings, limit, play: Play):
    ended, _ = play(command, **settings)
    assert (ended.exit_code, ended.limit) == (None, limit), ended
    assert ended.describe() == f"reached the limit `{limit}`"


PIPES = "for i in range(1200): os.pipe()\n"
UNLINKED = (
    "import mmap, os, time\nkept = []\nfor i in range(8):\n"
    " f = os.open('x', os.O_CREAT | os.O_RDWR); os.unlink('x'); os.write(f, bytes(1 << 20)); "
)
MEMORY, DISK = {"sandbox_memory_mib": 64}, {"sandbox_disk_mib": 4}
HOARDS: dict[str, tuple[str, dict[str, int]]] = {
    "pipes": ("import os, time\nfor i in range(1200):\n os.pipe()\n if i % 400 == 399: os.fork()", MEMORY),
    "pipes of a process whose first thread has ended": (
        "import ctypes, os, threading, time\ndef hold():\n time.sleep(0.2)\n " + PIPES + " time.sleep(60)\n"
        "threading.Thread(target=hold).start(); ctypes.CDLL(None).pthread_exit(None)",
        MEMORY,
    ),
    "pipes after a file whose path is too long": (
        "import os, time\nfor i in range(20): os.mkdir('d' * 255); os.chdir('d' * 255)\n"
        "os.dup2(os.open('x', os.O_CREAT), 3)\n" + PIPES,
        MEMORY,
    ),
    "other descriptors": ("import os, time\nkept = [os.dup(0) for i in range(5000)]", MEMORY),
    "files that were sent and not received": (
        "import os, socket, time\na, b = socket.socketpair()\nx = os.open('x', 64)\nsocket.send_fds(a, [b'x'], [x])",
        {"sandbox_memory_mib": 1024},
    ),
    "sockets": ("import socket, time\nkept = [socket.socketpair() for i in range(400)]", MEMORY),
    "files without a name": (UNLINKED + "kept.append(f)", DISK),
    "mapped files without a name": (UNLINKED + "kept.append(mmap.mmap(f, 1 << 20)); os.close(f)", DISK),
    "a folder that cannot be listed": (
        "import os, time\nos.mkdir('d')\nfor i in range(8): open(f'd/{i}', 'wb').write(bytes(1 << 20))\n"
        "os.chmod('d', 0o300)",
        DISK,
    ),
    "files that are all holes": ("import os, time\nfor i in range(8): os.truncate(os.open(f'{i}', 66), 1 << 20)", DISK),
    "deep folders": ("import os, time\nfor i in range(300): os.mkdir('d'); os.chdir('d')", {}),
}


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: what no process shows is not measured elsewhere")
@pytest.mark.parametrize("hoard", list(HOARDS))
def test_what_is_held_without_a_name_counts(hoard, play: Play):
    code, settings = HOARDS[hoard]
    ended, _ = play(f"{PYTHON} -S -c {shlex.quote(code + chr(10) + 'time.sleep(60)')}", **settings)
    assert ended.limit == ("sandbox_memory_mib" if "sandbox_memory_mib" in settings else "sandbox_disk_mib"), ended


def test_a_folder_that_takes_long_to_measure_is_measured_again_when_the_disk_fills(tmp_path):
    sizes = FolderSize([str(tmp_path)], 4 << 20)
    assert sizes.measure() < 4 << 20
    sizes._next = math.inf  # as after a measurement of very many files
    (tmp_path / "big").write_bytes(os.urandom(64 << 20))
    assert sizes.measure() > 4 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: elsewhere nothing waits for a process")
def test_a_measurement_that_waits_does_not_lengthen_the_time_of_a_command(play: Play):
    bomb = "import os\nwhile 1:\n try: os.fork()\n except OSError: pass"  # the kernel lets readers of its maps wait
    ended, _ = play(f"{PYTHON} -I -S -c {shlex.quote(bomb)}", sandbox_seconds=2)
    assert ended.limit is not None
    assert ended.seconds < 12.0


def test_many_short_processes_reach_no_limit(play: Play):
    ended, _ = play(shell("i=0; while [ $i -lt 200 ]; do /bin/true & /bin/true; i=$((i + 1)); done; wait; echo done"))
    assert (ended.exit_code, ended.stdout) == (0, "done\n"), ended


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root sees every process: left unchecked")
def test_a_process_that_hides_what_it_holds_is_ended(play: Play):
    ended, _ = play(shell("cp $(command -v sleep) hidden; chmod 111 hidden; exec ./hidden 60"))
    assert ended.limit == "sandbox_memory_mib", ended


REFUSED = {
    "memory of a descriptor": "os.memfd_create('x')",
    "a file without a name": "os.open('.', os.O_TMPFILE | os.O_RDWR)",
    "a larger pipe": "fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)",
    "a segment of System V": "call(libc.shmget(0, 4096, 0o1600))",
    "shared memory without a file": "mmap.mmap(-1, 4096)",
    "the same of a device": "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 4096)",
    "a user namespace": "call(libc.unshare(0x10000000))",
    "descriptors of one thread": "call(libc.unshare(0x400))",
    "the same at their end": "call(libc.close_range(900, 901, 2))",
    "a limit of another process": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
    "the priority of another process": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "the processors of another process": "os.sched_setaffinity(os.getppid(), {0})",
    "a terminal": "open(sys.argv[1]).close()",
}


@pytest.mark.skipif(not seccomp.is_known(), reason="no seccomp filter for this system: what it refuses is unchecked")
@pytest.mark.parametrize("sandbox", SANDBOXES)
def test_what_cannot_be_measured_and_other_processes_are_refused(sandbox, play: Play):
    lines = [
        "import ctypes, fcntl, mmap, os, resource, sys, threading",
        "libc = ctypes.CDLL(None)",
        "def call(result):\n if result < 0: raise OSError",
        *(f"try: {way}; print({name!r})\nexcept OSError: pass" for name, way in REFUSED.items()),
        "resource.prlimit(0, resource.RLIMIT_CORE, (0, 0)); os.nice(1); os.sched_setaffinity(0, {0})",
        "threading.Thread(target=print, args=('done',)).start()",
    ]
    master, terminal = os.openpty()
    ended, _ = play(f"{PYTHON} -c {shlex.quote(chr(10).join(lines))} {os.ttyname(terminal)}", sandbox=sandbox)
    assert (ended.exit_code, ended.stdout) == (0, "done\n"), ended
    os.close(master)
    os.close(terminal)


def test_memory_is_refused_beyond_its_limit(play: Play):
    ended, _ = play(f"{PYTHON} -S -c 'bytearray(200 << 20)'", sandbox_memory_mib=64)
    assert ended.limit == "sandbox_memory_mib" or "MemoryError" in ended.stderr


def test_of_a_flood_the_beginning_and_the_end_are_kept(play: Play):
    ended, _ = play(shell("echo begin; head -c 30000000 /dev/zero | tr '\\0' x; echo end"), sandbox_output_kib=2)
    assert ended.stdout.startswith("begin\nxxx")
    assert ended.stdout.endswith("xxxend\n")
    assert "bytes are left out ...]" in ended.stdout
    assert len(ended.stdout) < 2200


def test_the_end_of_a_command_is_described(play: Play):
    assert play(shell("kill -SEGV $$"))[0].describe() == "was killed by SIGSEGV"
    assert Ended(3).describe() == "ended with exit code 3"
    with pytest.raises(HarnessError, match="no-such-program: No such file"):
        play("no-such-program")


async def test_a_command_whose_rollout_is_given_up_is_killed(task):
    settings = HarnessSettings(agent_command=shell("echo $$ > pid; exec sleep 987"))
    scratch = Scratch(None, "given-up")
    run = HarnessRun(settings, task, Endpoint("http://127.0.0.1:9", "m"))
    running = asyncio.create_task(run.agent(scratch))
    while not (scratch.workspace / "pid").exists() or not (scratch.workspace / "pid").read_text():
        await asyncio.sleep(0.01)
    pid = int((scratch.workspace / "pid").read_text())
    assert psutil.pid_exists(pid)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not psutil.pid_exists(pid)
    scratch.remove()


CHEATS = {
    "files": "echo pass > tests/test_median.py; echo x > conftest.py; mkdir pytest; echo x > pytest/__main__.py",
    "a link for a removed folder": "rm -r tests; mkdir other; ln -s other tests",
    "another case": "echo x > CONFTEST.py",
}


@pytest.mark.parametrize("cheat", list(CHEATS))
async def test_protected_files_are_restored_and_reported(cheat, task):
    check = "! test -e conftest.py && ! test -e pytest/__main__.py && grep -q seen tests/test_median.py"
    script = f"printf 2 > answer.txt; {CHEATS[cheat]}"
    result = await finished(task, shell(script), test_command=shell(check))
    assert result.tampered
    assert result.tests is not None
    assert result.tests.exit_code == 0
    assert "answer.txt" in result.changed


QUIT = "import os; os._exit(0)"
SETTINGS = {
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--collect-only'\n",
    "setup.cfg": "[tool:pytest]\naddopts = --collect-only\n",
    "tests/.pytest.toml": "[pytest]\naddopts = ['--collect-only']\n",
}
MODULES = dict.fromkeys(["iniconfig.py", "xml/__init__.py", "pdb.py", "json.py", "tests/pdb.py"], QUIT)
PLUGIN = {
    **dict.fromkeys(["evil-1.DIST-INFO/entry_points.txt", "other/entry_points.txt"], "[pytest11]\nevil = evil\n"),
    "evil.py": QUIT,
}
PYTEST = f"PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {PYTHON} -m pytest -q"


async def test_a_failing_test_fails_whatever_the_agent_wrote_beside_it(task):
    (Path(task["folder"]) / "workspace" / "tests" / "test_median.py").write_text("def test_it():\n    assert False\n")
    files = SETTINGS | MODULES | PLUGIN
    writes = "".join(f"mkdir -p $(dirname {name}); printf %s {shlex.quote(files[name])} > {name}; " for name in files)
    result = await finished(
        task, shell(f"{writes} ln -s other evil-2.dist-info"), test_command=f"{PYTHON} -m pytest -q"
    )
    assert result.tests is not None
    assert (result.tests.exit_code, set(files) <= set(result.changed)) == (1, True), result.tests.stdout
    assert set(result.tampered) >= {"pyproject.toml", "setup.cfg"}
    assert not {*MODULES, "evil.py"} - {"tests/pdb.py"} & set(result.tampered)


HIDING = {
    "bytecode behind a link": "mkdir other; ln -s other __pycache__; cp $TMPDIR/grader.*.pyc other",
    "a package of its name": "mkdir grader; echo > grader/__init__.py",
    "the package that it would be in": "echo 'import os; os._exit(0)' > checks/__init__.py",
}


@pytest.mark.parametrize("way", list(HIDING))
async def test_a_protected_module_is_what_tests_import(way, task):
    folder = Path(task["folder"])
    (folder / "workspace" / "checks").mkdir()
    for name in ("grader.py", "checks/grading.py"):
        (folder / "workspace" / name).write_text("raise SystemExit(7)\n")
    (folder / "task.toml").write_text('[verifier]\nprotected = ["grader.py", "checks/grading.py"]\n')
    compiling = (  # bytecode that Python does not compare with its source
        "import importlib.util as u, marshal, os, sys; open(os.environ['TMPDIR'] + f'/grader.{sys.implementation."
        "cache_tag}.pyc', 'wb').write(u.MAGIC_NUMBER + bytes([1]) + bytes(11) + marshal.dumps(compile('', '', 'exec')))"
    )
    script = f"{PYTHON} -c {shlex.quote(compiling)}; {HIDING[way]}; echo half=2 > mine.py"
    test = (
        f"{PYTHON} -c 'import mine'; for name in grader checks.grading; do {PYTHON} -c \"import $name\"; echo $?; done"
    )
    result = await finished(task, shell(script), test_command=shell(test))
    assert result.tests is not None
    assert (result.tests.stdout, result.tests.stderr, result.tampered) == ("7\n7\n", "", []), result


async def test_pipes_and_links_out_that_tests_leave_are_removed_before_the_reward(task):
    run = HarnessRun(HarnessSettings(agent_command="true"), task, Endpoint("http://127.0.0.1:9", "m"))
    (Path(task["folder"]) / "tests" / "test.sh").write_text("mkfifo pipe; ln -s $TASK_FILE out; echo > kept\n")
    scratch = Scratch(None, "links")
    result = await run.finish(scratch, await run.agent(scratch))
    left = {name: (result.workspace / name).exists() for name in ("pipe", "out", "kept")}
    scratch.remove()
    assert left == {"pipe": False, "out": False, "kept": True}


async def test_modules_and_files_of_the_agent_are_there_for_the_tests_but_not_its_own_tests(task):
    (Path(task["folder"]) / "workspace" / "tests" / "test_median.py").write_text(
        "import json, os, median\n\ndef test_it():\n    assert (median.half, json.dumps(1)) == (2, '1')\n"
        "    assert os.path.isdir('empty') and open('closed').read() == '' and os.access('run', os.X_OK)\n"
    )
    script = (
        "echo 'from mine import half' > median.py; echo half=2 > mine.py; echo half=3 > json.py; mkdir empty; "
        "touch closed run; chmod 0 closed; chmod +x run; echo 'assert False' > test_mine.py"
    )
    result = await finished(task, shell(script), test_command=shell(PYTEST))
    assert result.tests is not None
    assert (result.tests.exit_code, result.tampered) == (0, []), result.tests.stdout


async def test_of_declared_results_nothing_else_and_of_links_none_that_leads_out_is_copied(task):
    script = (
        "echo 1 > a.txt; echo 2 > b.txt; echo 3 > setup.cfg; echo 4 > tox.ini; mkdir out; echo 5 > out/c; "
        "ln -s ../../task.json out/secret; ln -s /etc out/etc; ln -s c out/d; ln -s loop out/loop; mkfifo out/pipe"
    )
    table = '[verifier]\nresults = ["a.txt", "setup.cfg", "out/**"]\n'
    (Path(task["folder"]) / "task.toml").write_text(table)
    result = await finished(task, shell(script), test_command=shell("find . -mindepth 1 | sort"))
    assert result.tests is not None
    assert result.tests.stdout.split() == [
        *("./a.txt", "./median.py", "./out", "./out/c", "./out/d", "./out/loop", "./setup.cfg", "./tests"),
        "./tests/test_median.py",
    ]
    assert result.tampered == ["tox.ini"]


async def test_the_reward_is_the_tests_the_written_number_the_function_or_the_exit_code(task):
    async def rewards(command: str, **settings: Any) -> float:
        found = await finished(task, command, **settings)
        agent = HarnessAgent(HarnessSettings(agent_command=command, **settings))
        return (await agent._rewards(task, found))["reward"]

    cheat = shell("printf 2 > answer.txt; echo x > conftest.py; exit 1")
    assert await rewards(cheat) == 1.0
    assert (await finished(task, cheat, tampering="zero")).tests is None
    assert await rewards(cheat, tampering="zero") == 0.0
    assert await rewards("true") == 0.0
    assert await rewards("true", test_command=shell("echo 0.25 > $REWARD_FILE")) == 0.25
    assert await rewards("true", test_command="sleep 987", test_seconds=0.2) == 0.0
    ended = HarnessResult(Ended(0), Path(task["folder"]), [], [])
    given = HarnessAgent(HarnessSettings(agent_command="true", agent_reward="recipes.test_harness:changes"))
    assert (await given._rewards(task, ended))["reward"] == 0.5
    untested = HarnessAgent(HarnessSettings(agent_command="true"))
    assert (await untested._rewards(task, ended))["reward"] == 1.0
    assert (await untested._rewards(task, replace(ended, agent=Ended(3))))["reward"] == 0.0
    with pytest.raises(HarnessError, match=r"'lots' to \$REWARD_FILE, which is no number"):
        await rewards("true", test_command=shell("echo lots > $REWARD_FILE"))
    with pytest.raises(HarnessError, match=r"'' to .REWARD_FILE, which is no number"):
        await rewards("true", test_command=shell("mkfifo $REWARD_FILE"))
    with pytest.raises(HarnessError, match=r"the test command cannot be run: .*no-such-test"):
        await rewards("true", test_command=shell("no-such-test"))


def changes(task: dict[str, Any], result: HarnessResult) -> float:
    return 0.5 if result.changed == [] and task["id"] == "one" else 0.0


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"agent_command": "python 'agent.py"}, "agent_command: .*cannot be read: no closing quotation"),
        ({"agent_env": ["MISSING_HERE"]}, "agent_env: 'MISSING_HERE' is not set here: write NAME=VALUE"),
        ({"agent_reward": "scores"}, "agent_reward: 'scores': write module:function"),
        ({"agent_reward": "no_such_module:score"}, "agent_reward: .* cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_settings_that_cannot_work_are_named_before_any_rollout(settings, complaint):
    with pytest.raises(UserError, match=complaint):
        HarnessAgent(HarnessSettings(**{"agent_command": "true", **settings}))


async def test_a_key_that_a_command_prints_is_in_nothing_that_is_recorded(task, server: ScriptedServer):
    key, gateway_key = "sk-of-the-agent-1234", "key-of-the-gateway-1"
    script = 'echo "$SERVICE and $OPENAI_API_KEY" | tee /dev/stderr'
    command = f"{shell(script)} agent --password {key}2"
    agent = HarnessAgent(HarnessSettings(agent_command=command, agent_env=[f"SERVICE={key}"]))
    llm = LLM(endpoint=server.endpoint, model="m", api_key=gateway_key)
    rollout = Rollout(rollout_id="ro-1", input=task, start_time=0.0)
    tracer = OtelTracer()
    async with tracer.trace_context():
        await agent.rollout_async(task, {"llm": llm}, rollout)
    spans = tracer.get_last_trace()
    recorded = f"{[span.model_dump_json() for span in spans]} {rollout.output}"
    assert "***" in recorded
    assert key not in recorded
    assert gateway_key not in recorded
