"""The sandbox of commands that may only look, by each way to make it, in each shell's words."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from connmgr.engine.envelope import Command
from connmgr.engine.sandbox import STATUS, refusal, sandboxed
from connmgr.engine.session import Session
from connmgr.errors import ReadOnlyUnavailable
from tests.components import mount_words, program
from tests.deadlines import DEADLINE_SECONDS
from tests.engine.shells import ALL, local_session

pytestmark = pytest.mark.needs("bwrap", "mounts")

MARK = "of-a-test"
OTHERS = {"bwrap": (), "unshare": ("bwrap",), "none": ("bwrap", "unshare")}
"""The ways to make a sandbox, and the programs that are not there."""


def looking(way: str, *words: str, cwd: Path | str = "/", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a program in the sandbox made in this ``way``."""
    argv = [word.decode() for word in sandboxed([word.encode() for word in words], environment, MARK)]
    if hidden := [found for name in OTHERS[way] if (found := program(name))]:
        hide = "".join(f"mount --bind /dev/null {path}; " for path in hidden)
        argv = [*mount_words(), "/bin/sh", "-c", f'{hide}exec "$@"', "sh", *argv]
    return subprocess.run(argv, cwd=cwd, capture_output=True, timeout=DEADLINE_SECONDS, check=False)


def python(way: str, text: str, cwd: Path | str = "/") -> str:
    """Run a Python program in the sandbox; return what it printed."""
    done = looking(way, os.path.realpath(sys.executable), "-I", "-c", text, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@pytest.fixture(params=["bwrap", "unshare"])
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_nothing_is_written_outside(way: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    text = """
    touch new; echo changed >file; rm file; mkdir below; chmod 0 file; echo x >/etc/connmgr-test
    echo x >/usr/connmgr-test; echo 1 >/proc/sys/kernel/panic; mknod disk b 8 0; mount -o remount,rw /
    cat file; echo x >/tmp/own && cat /tmp/own
    """
    done = looking(way, "/bin/sh", "-c", text, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"keptx\n"), done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert not Path("/etc/connmgr-test").exists()


def test_unix_sockets_take_nothing(way: str, tmp_path: Path) -> None:
    # As that of a container's engine: it takes connections on a file system that cannot be written.
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        text = f"""
import socket
try:
    socket.socket(socket.AF_UNIX).connect({str(path)!r})
    print("connected")
except OSError:
    print("refused")
"""
        assert python(way, text, tmp_path) == "refused\n"


def test_there_is_no_network(way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        text = f"""
import socket
try:
    socket.create_connection(("127.0.0.1", {listening.getsockname()[1]}), 5)
    print("connected")
except OSError:
    print("refused")
"""
        assert python(way, text) == "refused\n"


def test_the_host_of_a_virtual_machine_is_out_of_reach() -> None:
    text = "import socket\ntry: socket.socket(40, socket.SOCK_STREAM)\nexcept PermissionError: print('refused')"
    assert python("bwrap", text) == "refused\n"


def test_the_pipes_of_jobs_are_hidden_also_as_the_directory(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not below /tmp, which the sandbox replaces anyway.
    with tempfile.TemporaryDirectory(dir="/srv" if os.access("/srv", os.W_OK) else Path.home()) as state:
        job = Path(state, "connmgr", "job")
        job.mkdir(parents=True)
        os.mkfifo(job / "0")
        reader = os.open(job / "0", os.O_RDONLY | os.O_NONBLOCK)
        monkeypatch.setenv("XDG_STATE_HOME", state)
        try:
            done = looking(way, "/bin/sh", "-c", "echo id >0", cwd=job)
            assert (os.read(reader, 10), done.returncode) == (b"", STATUS), done.stderr
        finally:
            os.close(reader)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_pipes_of_jobs_are_hidden_from_whoever_exports_another_home(
    shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/srv" if os.access("/srv", os.W_OK) else Path.home()) as state:
        job = Path(state, "connmgr", "jobs")
        job.mkdir(parents=True)
        os.mkfifo(job / "0")
        reader = os.open(job / "0", os.O_RDONLY | os.O_NONBLOCK)
        monkeypatch.setenv("XDG_STATE_HOME", state)
        try:
            with local_session(shell) as session:
                session.has_started()
                setting = {"fish": "set -gx NAME /usr"}.get(shell, "export NAME=/usr")
                for name in ("HOME", "XDG_STATE_HOME"):
                    session.exec(Command(setting.replace("NAME", name).encode()), DEADLINE_SECONDS)
                code, seen = look(session, f"echo $HOME; echo id >{job}/0")
            assert seen == b"/usr\n"
            assert (os.read(reader, 10), code != 0) == (b"", True)
        finally:
            os.close(reader)


def test_other_processes_are_out_of_reach(way: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        try:
            done = looking(way, "/bin/sh", "-c", f"kill -9 {other.pid}; ls -d /proc/{os.getpid()}")
            assert done.returncode != 0
            assert other.poll() is None
        finally:
            other.kill()


def test_nothing_is_gained_by_setuid_programs_and_namespaces(way: str) -> None:
    text = """
import os
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(status["NoNewPrivs"].strip(), int(status["CapEff"], 16) & ~(1 << 2))
print(os.system("unshare -Urm mount -o remount,rw,bind / 2>/dev/null") != 0)
print(os.system("unshare -m mount -t tmpfs tmpfs /etc 2>/dev/null") != 0)
"""
    assert python(way, text) == "1 0\nTrue\nTrue\n"


def test_a_terminal_outside_gets_no_input(way: str) -> None:
    text = """
import fcntl, termios
try:
    fcntl.ioctl(open("/dev/tty"), termios.TIOCSTI, b"x")
    print("typed")
except OSError:
    print("refused")
"""
    assert python(way, text) == "refused\n"


def test_devices_are_private(way: str) -> None:
    text = "ls /dev/disk /dev/kmsg /dev/mem; echo x >/dev/null && head -c 1 /dev/zero | wc -c"
    done = looking(way, "/bin/sh", "-c", text)
    assert done.stdout == b"1\n"


def test_what_it_starts_ends_with_it(way: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    done = looking(way, "/bin/sh", "-c", "(trap '' HUP TERM; sleep 600) & echo begun", cwd=tmp_path)
    # The background process has the output, too: its end is the end of the output.
    assert done.stdout == b"begun\n"
    assert not pipe.exists()


def test_variables_are_set_inside(way: str) -> None:
    done = looking(way, "/bin/sh", "-c", 'echo "$GIVEN"', GIVEN="it's set", LD_PRELOAD="/nowhere/library.so")
    # Outside, each program of the sandbox's script would complain, too.
    assert done.stdout == b"it's set\n"
    assert done.stderr.count(b"bwrap") == done.stderr.count(b"mount") == 0


def test_input_and_exit_code_pass_through(way: str) -> None:
    argv = [word.decode() for word in sandboxed([b"/bin/sh", b"-c", b"cat; exit 7"], {}, MARK)]
    done = subprocess.run(argv, input=b"a\0b", capture_output=True, timeout=DEADLINE_SECONDS, check=False, cwd="/")
    assert (done.returncode, done.stdout) == (7, b"a\0b")


def test_a_missing_program_has_the_usual_exit_codes(way: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    assert looking(way, "no-such-program-at-all").returncode == 127
    assert looking(way, "./text", cwd=tmp_path).returncode == 126


def test_a_mount_whose_name_cannot_be_read_refuses_the_command(tmp_path: Path) -> None:
    place = tmp_path / "a\\b"
    place.mkdir()
    argv = [word.decode() for word in sandboxed([b"/bin/true"], {}, MARK)]
    hide = f"mount --bind /dev/null {program('bwrap')}; mount -t tmpfs tmpfs '{place}'; "
    argv = [*mount_words(), "/bin/sh", "-c", f'{hide}exec "$@"', "sh", *argv]
    done = subprocess.run(argv, cwd="/", capture_output=True, timeout=DEADLINE_SECONDS, check=False)
    assert done.returncode == STATUS
    assert b"cannot be made read-only" in done.stderr


def test_without_a_sandbox_nothing_runs(tmp_path: Path) -> None:
    done = looking("none", "/bin/sh", "-c", "echo ran", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (STATUS, b"")
    error = refusal(MARK, done.returncode, done.stderr)
    assert error is not None
    assert "neither bwrap nor unshare" in error.message
    # What a program prints is not mistaken for that.
    assert refusal("another", done.returncode, done.stderr) is None
    assert refusal(MARK, 1, done.stderr) is None


@pytest.fixture(params=ALL)
def shell(request: pytest.FixtureRequest) -> Iterator[Session]:
    with local_session(request.param) as session:
        yield session


def look(session: Session, text: str, **options: object) -> tuple[int, bytes]:
    command = Command(text.encode(), sandbox=MARK, **options)  # type: ignore[arg-type]
    result = session.exec(command, DEADLINE_SECONDS)
    return result.exit_code, bytes(result.stdout)


def test_a_session_s_text_is_in_the_words_of_its_shell(shell: Session, tmp_path: Path) -> None:
    assert look(shell, 'echo "it\'s here"; exit 3') == (3, b"it's here\n")
    code, _ = look(shell, f"touch {tmp_path}/written")
    assert (code != 0, list(tmp_path.iterdir())) == (True, [])
    assert look(shell, "cat", stdin=b"input\n") == (0, b"input\n")
    assert look(shell, "echo $GIVEN", environment={"GIVEN": "inside"}) == (0, b"inside\n")


def test_a_session_is_not_changed(shell: Session) -> None:
    before = bytes(shell.exec(Command(b"pwd; env | grep -c ."), DEADLINE_SECONDS).stdout)
    look(shell, "cd /usr")
    look(shell, "echo $LANG", sent={"LANG": "C.UTF-8"}, environment={"LD_PRELOAD": "/nowhere.so", "LEFT": "behind"})
    assert bytes(shell.exec(Command(b"pwd; env | grep -c ."), DEADLINE_SECONDS).stdout) == before
    assert b"LEFT" not in bytes(shell.exec(Command(b"env"), DEADLINE_SECONDS).stdout)


def test_a_session_says_that_there_is_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("connmgr.engine.sandbox._MOUNTS", type("Missing", (), {"text": "exit 1"}))
    monkeypatch.setattr("connmgr.engine.sandbox._filter", lambda: b"no filter")
    with local_session("sh") as session, pytest.raises(ReadOnlyUnavailable, match="bwrap fails"):
        look(session, "echo ran")
