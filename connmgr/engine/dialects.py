"""The shells that the engine supports, and how each is started, driven and asked for its state.

A *supervisor* is the shell that lives as long as the session. It reads one envelope per command from its standard input
and runs it in a subshell, so that a command cannot affect the supervisor. fish and csh cannot do that: ``/bin/sh``
supervises them and starts one per command.

The programs of ``scripts/`` define functions, and envelopes call them. The constants in capitals name those functions,
with their arguments. :mod:`connmgr.engine.envelope` explains the letters, which the programs print after the nonce.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from connmgr.engine.script import Source, fill, quote
from connmgr.errors import UnsupportedShell

GONE = b"_cm_gone"
"""``letter nonce``: reports why the command does not run."""

DUMP = b"_cm_dump"
"""``status nonce``: prints the state, and ends the subshell."""

PUT = b"_cm_put"
"""``text``: prints bytes in the escapes of ``printf %b``, as a command's input."""

HOLD, FREE = b"_cm_hold", b"_cm_free"
"""Reserve and release the descriptors that scripts use; between them the streams of a command are kept."""

EXEC = b"_cm_exec"
"""``argv…``: becomes a program of PATH whose name ``exec`` would read as something else."""

END = b"_cm_end"
"""``status nonce``: the supervisor reports the end of a command."""

DONE = b"_cm_done"
"""``status nonce``: a subshell reports its own end; the supervisor then only needs :data:`RENEW`."""

RENEW = b"_cm_renew"
"""Reopens the session's streams."""

FUNCTION_PREFIX = "_cm_"
"""The prefix of all functions of a supervisor, even those that no envelope calls."""

DIRECTORY = "c"
MOVED = "p"
VARIABLES = "v"
REST = "x"
REFUSED = "g"
LOST = "l"

LETTERS = {"directory": DIRECTORY, "moved": MOVED, "variables": VARIABLES, "rest": REST}
"""The letters by their names in the programs of ``scripts/``."""


@dataclass(frozen=True)
class Interpreted:
    """How sh runs a command in a shell that cannot supervise.

    ``call`` is the sh text, which contains ``@command@``, ``@shell@`` and ``@program@``: the command, the shell's path,
    and ``program``, which prints the state after the command.
    """

    call: str
    program: Source

    @cached_property
    def template(self) -> bytes:
        """The sh text, with the blanks ``@command@``, ``@shell@``, ``@nonce@`` and ``@env@``."""
        program = quote(self.program.text.rstrip("\n").encode()).decode()
        return fill(self.call, {"program": fill(program, LETTERS | {"supervisor": "'$$'"})}).encode()


@dataclass(frozen=True)
class Interpreter:
    """The shell that runs the commands of a session supervised by ``/bin/sh``.

    ``env`` is the path of env(1).
    """

    shell: str
    language: Interpreted
    env: str = "/usr/bin/env"


_RENEWAL = "exec 8>/proc/self/fd/8 9>/proc/self/fd/9"


@dataclass(frozen=True)
class Dialect:
    """The facts about one family of shells that the engine needs; texts are in the language of that shell."""

    number: int
    """The API's ``shellDialect``."""

    names: tuple[str, ...]
    options: tuple[str, ...] = ()

    builtin: str = "command"
    """The word that calls a builtin despite a function of the same name."""

    plainly: str = r"\unset -f command"
    """Removes a function with the name of that word itself."""

    preset: frozenset[bytes] = frozenset({b"PPID"})
    """Variables whose values the shell sets itself, so that they can only be exported."""

    controls: frozenset[bytes] = frozenset()
    """Variables that change its behaviour."""

    exports: str = "command export -p"
    """Prints the exported variables as ``export -p`` does."""

    fork: str = ""
    """Makes ``( … )`` a process in shells where it would not be one."""

    streams: str = ">&8 2>&9 8>&- 9>&-"
    """The redirections of a command."""

    hold: Source | None = None
    """Defines the functions around a command, if the shell can open descriptors beyond 9."""

    untrap: str = ":"
    """Undoes traps that a command may have set for the words that follow."""

    renewal: str = f"command {_RENEWAL}"
    """Reopens the session's streams."""

    functions: str = ""
    """Prints the functions and aliases that a shell may have been started with."""

    unknown: str = ":"
    """Defines what says that a program is missing, where the shell itself would add a line of the session."""

    family: str = "@builtin@ echo"
    """Prints which shell one called sh is."""

    preparation: str = ":"
    """Is run once, before all commands."""

    put: str = '@builtin@ printf %b "$1"'
    """Prints its argument, in which ``\\0ooo`` is the byte of that octal number, and nothing after it."""

    slurps: bool = False
    """Whether ``$(<file)`` is the content of a file."""

    execute: str = "exec"
    """Replaces the shell by a program."""

    by_path: str = ""
    """Does this with the path of the program ``$_cm_name``, if :attr:`execute` would prefer a builtin."""

    newline: bytes = b"\n"
    """A newline within single quotes."""

    interpreter: Interpreted | None = None
    """For a shell that cannot supervise: how sh runs a command in it."""

    def quoted(self, word: bytes) -> bytes:
        """Return ``word``, which may contain any bytes, as one word of this shell."""
        return quote(word) if self.newline == b"\n" else quote(word).replace(b"\n", self.newline)

    def behind(self, family: Dialect, preset: frozenset[bytes]) -> Dialect:
        """Return this dialect for the actual shell ``family`` behind the name sh, with its and the given ``preset``."""
        preset |= family.preset
        own = replace(self, preset=preset, controls=family.controls, fork=family.fork, newline=family.newline)
        return replace(own, by_path=family.by_path and own.execute)


# zsh cannot read back what its own `export -p` prints for control characters and bytes above 127. Arrays may be marked,
# but are not exported.
_ZSH_EXPORTS = (
    "builtin emulate -L zsh -o extendedglob;builtin local _cm_k;builtin local -a _cm_e;"
    'for _cm_k in "${(@k)parameters[(R)(scalar|integer|float)*export*~*readonly*special*]}";do '
    '_cm_e+=("export $_cm_k=${(qq)${(P)_cm_k}}");done;'
    '(($#_cm_e))&&builtin print -rl -- "${(@)_cm_e}"'
)

# Neither fish nor csh has a subshell that would keep `exit`, `exec` or a redirection from the shell itself, and csh
# reads ahead of what it runs. So sh gives each command to a new one: its text comes through a pipe, which becomes
# descriptor 7, and its standard input, which sh has kept as 6, is put back. No argv, and so no `ps`, shows the text.
_FISH = Interpreted(
    "printf %s @command@|{ @shell@ --no-config -c @program@ 7<&0 <&6 6<&-;}", Source(__package__, "command", "fish")
)
_CSH = Interpreted(
    "printf '%s\n%s\n' @command@ @program@|{ @shell@ -f /dev/fd/7 7<&0 <&6 6<&-;}",
    Source(__package__, "command", "csh"),
)
_HOLD_COPIES = Source(__package__, "hold_copies")
_HOLD_TEN = Source(__package__, "hold_ten")
_USUAL_OPTIONS = "set +aefuvxC"  # bash takes others from its environment
# While POSIXLY_CORRECT is set, bash finds its own `unset` before a function of that name.
_BASH_PLAINLY = (
    "POSIXLY_CORRECT=${POSIXLY_CORRECT-_cm_};unset -f builtin enable;enable builtin exit echo pwd export trap unset [;"
    'case "$POSIXLY_CORRECT" in _cm_) unset POSIXLY_CORRECT;; esac'
)
# Without this option, `exec` of zsh runs builtins and functions instead of programs.
_ZSH_EXECUTE = "builtin unset -f command_not_found_handler 2>/dev/null;builtin setopt posixbuiltins;builtin exec"
# As a shell says it to a person: the number of the line would be that of the envelope. A handler of the user's stays.
_UNKNOWN = (
    "@builtin@ declare -F command_not_found_handle >/dev/null||command_not_found_handle(){ "
    '@builtin@ printf \'%s: %s: command not found\\n\' "${0##*/}" "$1" >&2;@builtin@ return 127;}'
)
# A trap of the command would run before each word of the engine that follows it, and could print or exit.
_UNTRAP = "command trap - DEBUG ERR||:"
# `cd -` goes to OLDPWD, which lasts like exported variables; a ksh exports it only if it was exported before.
_KEEP_DIRECTORY_BEFORE = "export OLDPWD"

SH = Dialect(
    0,
    ("sh",),
    hold=_HOLD_TEN,
    untrap=_UNTRAP,
    preparation=f"{_USUAL_OPTIONS};{_KEEP_DIRECTORY_BEFORE}",
    functions='case "$BASH_VERSION" in ?*) declare -F;; *) typeset +f;; esac',
    unknown=f'case "$BASH_VERSION" in ?*) {_UNKNOWN};; esac',
    # KSH_VERSION may be any shell's variable, but only ksh93 has one of this name.
    family="if case \"$KSH_VERSION\" in Version*) (eval ': ${.sh.version}');; *) ! :;; esac;then command echo ksh93;"
    "elif (PATH=/nowhere;exec :) 2>&-;then command echo pdksh;"
    'else command echo "${BASH_VERSION:+bash}${ZSH_VERSION:+zsh}";fi',
    # A shell without its own printf is identified by KSH_VERSION, which may be any shell's variable.
    put='if PATH=/dev/null command -v printf >/dev/null;then command printf %b "$1";'
    'else case "$KSH_VERSION" in *" KSH "*) print -n -- "$1";; *) command printf %b "$1";; esac;fi',
)
_MKSH = Dialect(
    5,
    ("mksh", "lksh"),
    untrap=_UNTRAP,
    functions="typeset +f",
    preparation=_KEEP_DIRECTORY_BEFORE,
    put='print -n -- "$1"',
    slurps=True,
    by_path='exec -a "$_cm_name"',
)
DIALECTS = (
    SH,
    Dialect(
        1,
        ("bash",),
        options=("--norc", "--noprofile"),
        builtin="builtin",
        exports="builtin export -p",
        streams='>&"${_cm_streams[0]}" 2>&"${_cm_streams[1]}" 8>&"${_cm_streams[2]}" 9>&"${_cm_streams[3]}"',
        hold=_HOLD_COPIES,
        plainly=_BASH_PLAINLY,
        preset=frozenset(b"PPID SHLVL UID EUID SHELLOPTS BASHOPTS".split()),
        controls=frozenset(b"FUNCNEST histchars BASH_XTRACEFD".split()),
        untrap="builtin trap - DEBUG ERR RETURN;builtin unset -f exec",
        renewal=_RENEWAL,
        functions="declare -F",
        unknown=_UNKNOWN,
        preparation=_USUAL_OPTIONS,
        slurps=True,
        execute="builtin exec",
    ),
    Dialect(2, ("dash",)),
    Dialect(3, ("ash",), preset=frozenset({b"PPID", b"SHLVL"}), hold=_HOLD_TEN),
    Dialect(
        4,
        ("zsh",),
        options=("-f", "+i"),
        builtin="builtin",
        plainly='case "${+functions[builtin]}" in 1) unset -f builtin;; esac',
        preset=frozenset(b"PPID SHLVL UID EUID GID EGID USERNAME".split()),
        controls=frozenset(b"FUNCNEST histchars HISTCHARS DIRSTACKSIZE".split()),
        exports=_ZSH_EXPORTS,
        untrap="builtin trap - DEBUG ERR;builtin unset -f exec||:",
        renewal=_RENEWAL,
        functions="typeset +f;unalias run-help which-command;alias",
        preparation="zmodload zsh/parameter;unsetopt hashdirs",
        slurps=True,
        execute=_ZSH_EXECUTE,
    ),
    _MKSH,
    replace(_MKSH, names=("oksh", "loksh", "pdksh"), by_path="exec"),
    # ksh93 runs `( … )` without a fork, and a timeout could not kill only that; setting a limit makes it fork. A signal
    # that comes before the parent has left the `( … )` makes it forget the child. So the child waits until the parent
    # has closed descriptor 7, which exists only within the `( … )`. On a terminal, ksh93 loses the read part of a
    # quoted string when the next line comes.
    Dialect(
        5,
        ("ksh", "ksh93", "ksh93u+m"),
        preset=frozenset({b"PPID", b"SHLVL"}),
        untrap=_UNTRAP,
        fork='exec 7>&8;ulimit -Ht "${_cm_limit-$(ulimit -Ht)}";exec 7>&-;'
        "while [ /proc/$$/fd/7 -ef /proc/$$/fd/8 ];do :;done;",
        slurps=True,
        newline=b"'$'\\n''",
        preparation=f"{_KEEP_DIRECTORY_BEFORE};_cm_limit=$(ulimit -Ht)",
    ),
    Dialect(6, ("fish",), preset=frozenset({b"SHLVL"}), interpreter=_FISH),
    Dialect(7, ("csh", "tcsh", "bsd-csh"), preset=frozenset({b"SHLVL"}), interpreter=_CSH),
)


def dialect_of(name: str) -> Dialect:
    """Return the dialect of a shell by the last part of its path.

    :raises UnsupportedShell: the engine does not support it.
    """
    for dialect in DIALECTS:
        if name in dialect.names:
            return dialect
    raise UnsupportedShell(
        f"{name[:80]!r} cannot host a session; set the connection's shell to one of: {', '.join(SHELL_NAMES)}."
    )


SHELL_NAMES = tuple(dialect.names[0] for dialect in DIALECTS)


_EXECUTE = Source(__package__, "execute")
_BECOME = Source(__package__, "become")


def definition(dialect: Dialect) -> str:
    """Return the text that defines the function which :func:`executed` may call."""
    return fill(_EXECUTE.text, {"builtin": dialect.builtin, "by_path": dialect.by_path or dialect.execute})


def executed(dialect: Dialect, argv: Sequence[bytes]) -> bytes:
    """Return the statement that replaces a shell of ``dialect`` by the program ``argv[0]``, as execvp(3) does.

    Builtins and functions do not count as programs. If there is no such program the shell says so and exits with 127;
    with 126 if it cannot be executed.
    """
    is_searched = b"/" not in argv[0] and (dialect.by_path or argv[0].startswith(b"-"))
    become = EXEC if is_searched else dialect.execute.encode()
    # On a terminal, ksh93 loses the beginning of a word at byte 65,536 of a line.
    between = b" " if dialect.newline == b"\n" else b" \\\n"
    return become + b" " + between.join(map(dialect.quoted, argv))


def become() -> str:
    """Return the text that defines ``become``, which does the same with its words in an unknown shell."""
    return fill(_EXECUTE.text, {"builtin": "", "by_path": "exec"}) + _BECOME.text
