"""The programs that tests run: how to find out whether one is installed, and which system package has it.

Run as a program by any Python 3, it prints the packages of the missing ones, one a line, alternatives joined by
``|``; an empty alternative at the end marks an optional package.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CAP_SYS_PTRACE = 19
ROOTLESS = "an ordinary user needs the package uidmap and 65,536 ids in /etc/subuid and /etc/subgid"
SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def program(name: str) -> str | None:
    """Return the absolute path of a program, administrators' directories included, or None."""
    return shutil.which(name, path=SYSTEM_PATH)


def postgres_programs() -> Path | None:
    """Return the directory that holds ``initdb`` and ``postgres`` of the newest installed PostgreSQL, or None.

    Debian keeps them out of the PATH, one directory a major version.
    """
    found = program("initdb")
    if found:
        return Path(found).resolve().parent
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in versions), key=lambda path: float(path.parent.name), default=None)


@cache
def private_mounts() -> bool:
    """Return whether this process may mount file systems in its own namespace."""
    if os.geteuid() != 0 or not all(map(program, ("unshare", "nsenter", "setpriv"))):
        return False
    argv = ["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "tmpfs", "/run"]
    return subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode == 0


@cache
def makes_cgroups() -> bool:
    """Return whether this process may make a control group; root of a user namespace may not."""
    script = "mount -t cgroup2 cgroup2 /mnt && mkdir /mnt/tests-$$ && rmdir /mnt/tests-$$"
    argv = ["unshare", "--mount", "--propagation", "private", "--cgroup", "/bin/sh", "-c", script]
    return private_mounts() and subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode == 0


@cache
def runs_bubblewrap() -> bool:
    """Return whether bubblewrap makes a sandbox here: as root, or in a user namespace."""
    found = program("bwrap")
    argv = [found or "", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/true"]
    return found is not None and subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode == 0


def sees_descriptors() -> bool:
    """Return whether this process sees a daemon's descriptors, which a daemon on Linux hides even from its own user."""
    status = Path("/proc/self/status")
    if not status.exists():
        return True
    capabilities = dict(line.split(":", 1) for line in status.read_text().splitlines())["CapEff"]
    return bool(int(capabilities, 16) >> CAP_SYS_PTRACE & 1)


@cache
def mount_words() -> tuple[str, ...]:
    """Return the argv prefix of a program that mounts in its own namespace: as root, or as root of a user namespace.

    It is empty if this user may do neither.
    """
    own = ("unshare", "--mount", "--propagation", "private")
    for words in (own, (*own, "--user", "--map-root-user")):
        with suppress(FileNotFoundError):
            argv = [*words, "mount", "-t", "tmpfs", "tmpfs", "/run"]
            if subprocess.run(argv, capture_output=True, timeout=20, check=False).returncode == 0:
                return words
    return ()


@cache
def openssh_source() -> Path | None:
    """Return the directory of OpenSSH's own regression tests, from Debian's source package; None without it.

    It is fetched once a run, with the package sources of this system, and with lists of its own.
    """
    if not all(map(program, ("apt-get", "tar"))):
        return None
    scratch = Path(tempfile.mkdtemp(prefix="openssh-source-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    parts = scratch / "parts"
    for directory in ("parts", "lists/partial", "cache/archives/partial"):
        (scratch / directory).mkdir(parents=True)
    for place in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")):
        if place.is_file() and (text := _with_sources(place.read_text(), place.suffix)):
            (parts / place.name).write_text(text)
    where = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": parts,
        "Dir::State::lists": scratch / "lists",
        "Dir::Cache": scratch / "cache",
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in where.items() for word in ("-o", f"{name}={value}")]
    for words in (["update"], ["source", "--download-only", "openssh"]):
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                ["apt-get", "-qq", *options, *words], cwd=scratch, capture_output=True, timeout=60, check=False
            )
    found = next(scratch.glob("openssh_*.orig.tar.gz"), None)
    if found is None:
        return None
    subprocess.run(["tar", "xf", found, "--strip-components=1", "-C", scratch], check=True, timeout=60)
    return scratch / "regress"


def _with_sources(text: str, suffix: str) -> str:
    """Return a list of package sources with those of source packages in place of binary ones."""
    if suffix == ".sources":
        return re.sub("^Types: .*$", "Types: deb-src", text, flags=re.MULTILINE)
    lines = [line for line in text.splitlines() if line.startswith("deb ")]
    return "".join(f"deb-src{line[3:]}\n" for line in lines)


def _has_libatomic() -> bool:
    try:
        ctypes.CDLL("libatomic.so.1")
    except OSError:
        return False
    return True


@dataclass(frozen=True)
class Component:
    """Something that a test needs of the system; ``packages`` are Debian's packages with it, newest first.

    Tests that need an ``optional`` component are skipped on systems without it, also in CI.
    """

    present: Callable[[], bool]
    packages: tuple[str, ...]
    hint: str
    optional: bool = False

    @classmethod
    def of_program(cls, name: str, *packages: str) -> Component:
        """Return the component that is one program in the PATH."""
        return cls(lambda: program(name) is not None, packages, f"the program {name} is not installed")


COMPONENTS = {
    "bash": Component.of_program("bash", "bash"),
    "dash": Component.of_program("dash", "dash"),
    "zsh": Component.of_program("zsh", "zsh"),
    "ksh93": Component.of_program("ksh93", "ksh93u+m", "ksh"),
    "mksh": Component.of_program("mksh", "mksh"),
    "busybox": Component.of_program("busybox", "busybox"),
    "tar": Component.of_program("tar", "tar"),
    "bsdtar": Component.of_program("bsdtar", "libarchive-tools"),
    "fish": Component.of_program("fish", "fish"),
    "tcsh": Component.of_program("tcsh", "tcsh"),
    "ssh": Component.of_program("ssh", "openssh-client"),
    "sshd": Component.of_program("sshd", "openssh-server"),
    "sudo": Component.of_program("sudo", "sudo"),
    "su": Component.of_program("su", "util-linux"),
    "doas": Component.of_program("doas", "opendoas", "doas"),
    "rsync": Component.of_program("rsync", "rsync"),
    "git": Component.of_program("git", "git"),
    "lftp": Component.of_program("lftp", "lftp"),
    "pdsh": Component.of_program("pdsh", "pdsh"),
    "clush": Component.of_program("clush", "clustershell"),
    "parallel": Component.of_program("parallel", "parallel"),
    "sshfs": Component(
        lambda: program("sshfs") is not None and os.access("/dev/fuse", os.R_OK | os.W_OK) and os.geteuid() == 0,
        ("sshfs", ""),
        "sshfs is not installed, or may not mount here (/dev/fuse)",
        True,
    ),
    "mosh": Component.of_program("mosh", "mosh"),
    "emacs": Component.of_program("emacs", "emacs-nox"),
    "top": Component.of_program("top", "procps"),
    "curl": Component.of_program("curl", "curl"),
    "jq": Component.of_program("jq", "jq"),
    "systemd-creds": Component.of_program("systemd-creds", "systemd"),
    "gnome-keyring": Component.of_program("gnome-keyring-daemon", "gnome-keyring"),
    "dbus": Component.of_program("dbus-run-session", "dbus"),
    "softhsm": Component.of_program("softhsm2-util", "softhsm2"),
    "openssl": Component.of_program("openssl", "openssl"),
    "pass": Component.of_program("pass", "pass"),
    "gpg": Component.of_program("gpg", "gnupg"),
    "tmux": Component.of_program("tmux", "tmux"),
    "vim": Component.of_program("vim", "vim"),
    "less": Component.of_program("less", "less"),
    "htop": Component.of_program("htop", "htop"),
    "mc": Component.of_program("mc", "mc"),
    "ps": Component.of_program("ps", "procps"),
    "podman": Component.of_program("podman", "podman"),
    "newuidmap": Component.of_program("newuidmap", "uidmap"),
    "docker": Component.of_program("docker", "docker-cli", "docker.io"),
    "lxc": Component.of_program("lxc-attach", "lxc"),
    "lxd": Component(
        lambda: program("lxd") is not None, ("lxd", ""), "the program lxd is not installed; Debian 12 has it", True
    ),
    "nspawn": Component.of_program("systemd-nspawn", "systemd-container"),
    "kubectl": Component(
        lambda: program("kubectl") is not None,
        ("kubernetes-client", ""),
        "the program kubectl is not installed; Debian has it",
        True,
    ),
    # Ubuntu has no package of it, only a snap.
    "chromium": Component(
        lambda: program("chromium") is not None,
        ("chromium", ""),
        "the program chromium is not installed; Debian has it",
    ),
    # Of the Node.js that playwright brings; Debian's smallest installation lacks it.
    "libatomic": Component(_has_libatomic, ("libatomic1", ""), "the library libatomic.so.1 is not installed"),
    "postgres": Component(
        lambda: postgres_programs() is not None, ("postgresql",), "PostgreSQL's initdb is not installed"
    ),
    "root": Component(lambda: os.geteuid() == 0, (), f"the tests do not run as root; {ROOTLESS}"),
    "machine": Component(
        private_mounts, (), f"mounts in a namespace of one's own need root with CAP_SYS_ADMIN; {ROOTLESS}"
    ),
    "mounts": Component(lambda: bool(mount_words()), (), "mounts need root with CAP_SYS_ADMIN or user namespaces"),
    "bwrap": Component(
        runs_bubblewrap, ("bubblewrap",), "bubblewrap is not installed, or may not make namespaces here"
    ),
    "cgroups": Component(makes_cgroups, (), "control groups are made by root of the whole system alone"),
    "descriptors": Component(sees_descriptors, (), "what a daemon holds open is seen with CAP_SYS_PTRACE alone"),
    "openssh-source": Component(
        lambda: openssh_source() is not None,
        (),
        "Debian's source package of OpenSSH cannot be fetched (apt-get source openssh)",
        True,
    ),
    "linux": Component(lambda: Path("/proc/self/stat").exists(), (), "this is not Linux with /proc"),
}


def missing(names: tuple[str, ...]) -> str | None:
    """Return why a test that needs ``names`` cannot run here, or None when it can.

    :raises KeyError: a name is not in ``COMPONENTS``.
    """
    for name in names:
        component = COMPONENTS[name]
        if not component.present():
            return f"needs {name}: {component.hint}"
    return None


def may_be_skipped(reason: str) -> bool:
    """Whether ``reason``, an answer of :func:`missing`, is about an optional component."""
    return any(component.optional and f"needs {name}: " in reason for name, component in COMPONENTS.items())


if __name__ == "__main__":
    for wanted in COMPONENTS.values():
        if wanted.packages and not wanted.present():
            print("|".join(wanted.packages))
