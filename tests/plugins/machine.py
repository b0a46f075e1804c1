"""A machine inside this one, for tests that run as root: private users and a private /etc.

It is a private mount namespace (mount_namespaces(7)) with a layer over /etc and empty directories where login programs
keep state. Everything in it, users included, is gone with its last process, even after a killed test run.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.components import program
from tests.deadlines import eventually, eventually_equal

# It ends when its standard input does, which it does when the tests die.
_HOLD = """
set -e
mount -t tmpfs -o mode=0755 tmpfs /run
touch /run/machine-of-tests
mkdir -m 0755 /run/sshd /run/layer /run/work
mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/layer,workdir=/run/work /etc
for directory in /root /home /var/lib/sudo /var/mail; do
  mkdir -p "$directory"
  mount -t tmpfs -o mode=0755 tmpfs "$directory"
done
echo ready
cat
"""

_ENTER = '[ -e /run/machine-of-tests ] && cd "$0" && exec "$@"'

# Each password that was refused is counted, but no prompt that was left unanswered. It is refused at once: how long a
# program waits then is not ours to test.
_PAM = """
{first}
auth [success=2 default=ignore] pam_unix.so {delay}
auth optional pam_exec.so quiet seteuid expose_authtok /etc/count-refusal
auth requisite pam_deny.so
auth required pam_permit.so
account required pam_unix.so
password required pam_unix.so
session required pam_permit.so
"""
_COUNT_REFUSAL = "#!/bin/sh\necho >>/run/refusals\n"
_SUDOERS = """
Defaults env_reset
Defaults secure_path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
root ALL=(ALL:ALL) ALL
"""
ROOT_PASSWORD = "root of all evil"
LEAST_UID = 1_000_000
SMALL_LEAST_UID = 10_000
USERS_OF_A_PROCESS = 100
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Inhabitant:
    """A user of a :class:`Machine`; ``home`` is a path on it."""

    name: str
    uid: int
    password: str
    home: str


class Machine:
    """A running machine, on which sudo, su and doas ask for passwords and sudoers and doas.conf allow nobody.

    With ``own_processes`` it sees only its own processes, which all end with it.
    """

    def __init__(self, *, own_processes: bool = False) -> None:
        apart = ["--pid", "--fork", "--kill-child"] if own_processes else []
        self._entered = ["--pid"] if own_processes else []
        self._holder = subprocess.Popen(
            ["unshare", "--mount", *apart, "--propagation", "private", "/bin/sh", "-c", _HOLD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._holder.stdout
        answer = self._holder.stdout.readline()
        if answer != b"ready\n":
            said = answer + self._holder.communicate(timeout=20)[0]
            raise AssertionError(f"no machine can be had: {said.decode()}")
        self._pid = psutil.Process(self._holder.pid).children()[0].pid if own_processes else self._holder.pid
        if own_processes:
            self.run("mount", "-t", "proc", "proc", "/proc")
        assert self.path("/run/machine-of-tests").exists(), "what /proc shows is not the machine"
        self.users: list[Inhabitant] = []
        for name in ("sudo", "su", "doas"):
            self._write_pam(name, delay="nodelay")
        self.write("/etc/count-refusal", _COUNT_REFUSAL, 0o755)
        self.root = Inhabitant("root", 0, ROOT_PASSWORD, "/root")
        self.set_password("root", ROOT_PASSWORD)
        self.allow()

    def _write_pam(self, name: str, delay: str) -> None:
        first = "auth sufficient pam_rootok.so" if name == "su" else ""
        self.write(f"/etc/pam.d/{name}", _PAM.format(first=first, delay=delay))

    def path(self, path: str) -> Path:
        """Return a path of the machine as seen from outside."""
        return Path(f"/proc/{self._pid}/root", path.lstrip("/"))

    def write(self, path: str, text: str, mode: int = 0o644, owner: Inhabitant | None = None) -> None:
        """Replace a file of the machine in one step."""
        target = self.path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.new")
        draft.write_text(text)
        draft.chmod(mode)
        if owner:
            os.chown(draft, owner.uid, -1)
            os.chown(target.parent, owner.uid, -1)
        draft.rename(target)

    def allow(self, *sudoers: str, doas: str = "") -> None:
        """Replace sudoers and doas.conf, forget given passwords, and reset :attr:`refusals`."""
        self.write("/etc/sudoers", _SUDOERS + "\n".join(sudoers) + "\n", 0o440)
        self.write("/etc/doas.conf", doas + "\n", 0o400)
        for directory in ("/run/sudo", "/var/lib/sudo/lectured", "/run/doas"):
            if self.path(directory).exists():
                shutil.rmtree(self.path(directory))
        self.path("/run/refusals").unlink(missing_ok=True)

    @property
    def refusals(self) -> int:
        """The number of refused passwords since :meth:`allow`."""
        path = self.path("/run/refusals")
        return path.read_text().count("\n") if path.exists() else 0

    def inside(self, user: Inhabitant | None = None) -> list[str]:
        """Return the prefix of an argv that runs it on the machine: as root, or as ``user`` in its home."""
        # The mark is checked each time, so that no fault runs anything on the real machine. The root is entered too,
        # because a namespace begins at the real root even if the tests run in a chroot.
        words = ["nsenter", "--target", str(self._pid), "--mount", *self._entered, "--root", "--wd", "--"]
        words += ["/bin/sh", "-c", _ENTER]
        if user is None:
            return [*words, "/"]
        become = ["setpriv", "--reuid", user.name, "--regid", user.name, "--init-groups", "--reset-env", "--"]
        return [*words, user.home, *become]

    def run(self, *argv: str, text: str = "", user: Inhabitant | None = None) -> str:
        """Run a command on the machine and return what it printed; it must succeed."""
        whole = [*self.inside(user), *argv]
        done = eventually(
            lambda: subprocess.run(whole, input=text, capture_output=True, text=True, timeout=30, check=False),
            f"{argv} finds the user database locked",
            # Another process may hold the lock of the user database; lock files identify it by its process id.
            holds=lambda done: done.returncode == 0 or "lock" not in done.stderr,
        )
        assert done.returncode == 0, f"{argv} exited with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def add_user(self, shell: str = "/bin/bash", password: str = "correct horse battery") -> Inhabitant:
        """Create a user."""
        number = next(_numbers)
        name = f"user{number}"
        uid = _uid(number)
        self.run("useradd", "--create-home", "--uid", str(uid), "--shell", shell, name)
        self.set_password(name, password)
        self.users.append(Inhabitant(name, uid, password, f"/home/{name}"))
        return self.users[-1]

    def set_password(self, name: str, password: str) -> None:
        """Change a user's password."""
        self.run("chpasswd", "--crypt-method", "SHA256", text=f"{name}:{password}\n")

    def await_end_of_processes(self, user: Inhabitant) -> None:
        """Wait until ``user`` has no processes; a failure names those left."""
        eventually_equal(
            lambda: [line for line in map(_command_line, self._processes({user.uid})) if line is not None],
            [],
            f"processes of {user.name} are left",
        )

    def stopped(self, *users: Inhabitant) -> list[str]:
        """Return the command lines of the users' processes that a signal has stopped."""
        found = []
        for process in self._processes({user.uid for user in users}):
            with suppress(psutil.Error):
                if process.status() == psutil.STATUS_STOPPED:
                    found.append(" ".join(process.cmdline()))
        return found

    def _processes(self, uids: set[int]) -> list[psutil.Process]:
        # In a small user namespace users of other test processes may have the same uids.
        namespace = _mounts(self._pid)
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, OSError):
                if not uids.intersection(process.uids()) or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if _mounts(process.pid) == namespace:
                    found.append(process)
        return found

    @contextmanager
    def delaying(self, name: str) -> Iterator[None]:
        """Let a login program refuse a password after a delay, as is its default."""
        self._write_pam(name, delay="")
        try:
            yield
        finally:
            self._write_pam(name, delay="nodelay")

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """Hide a program during the block."""
        path = Path(shell_path(name)).resolve()
        layer = f"lowerdir={path.parent},upperdir=/run/without/upper,workdir=/run/without/work"
        self.run("mkdir", "-p", "/run/without/upper", "/run/without/work")
        self.run("mount", "-t", "overlay", "overlay", "-o", layer, str(path.parent))
        self.run("rm", str(path))
        try:
            yield
        finally:
            self.run("umount", "--lazy", str(path.parent))
            self.run("rm", "-rf", "/run/without")

    def close(self) -> None:
        """End the machine and its users' processes."""
        for process in self._processes({user.uid for user in self.users}):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._holder.communicate(timeout=20)


def shell_path(name: str) -> str:
    """Return the absolute path of a shell for /etc/passwd."""
    path = program(name)
    assert path, f"{name} is not installed"
    return path


def _mounts(pid: int) -> str:
    """Return the identity of a process's mount namespace.

    :raises OSError: the process has ended.
    """
    return str(Path(f"/proc/{pid}/ns/mnt").readlink())


def _uid(number: int) -> int:
    """Return a uid for a user of this test process, above the uids of the real machine's users if they are mapped."""
    uid = LEAST_UID + os.getpid() * USERS_OF_A_PROCESS + number
    mapped = sum(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    return uid if uid < mapped else SMALL_LEAST_UID + uid % (mapped - 2 * SMALL_LEAST_UID)


def _command_line(process: psutil.Process) -> str | None:
    """Return a process's command line, or None if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return None
