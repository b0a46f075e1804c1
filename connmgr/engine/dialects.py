"""The shells that the engine speaks, and how each is started, driven and asked for its state.

A *supervisor* is the shell that lives as long as the session. It reads one frame a command from its standard input and
runs it in a subshell, so that nothing a command does to its shell reaches the supervisor. fish and csh cannot do that:
``/bin/sh`` supervises them and starts one a command.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from string import Template

from connmgr.errors import UnsupportedShell


def quote(word: bytes) -> bytes:
    """Return ``word`` as one single-quoted word of a POSIX shell, whatever bytes it holds."""
    return b"'" + word.replace(b"'", b"'\\''") + b"'"


_RENEWAL = "exec 8>/proc/self/fd/8 9>/proc/self/fd/9"


@dataclass(frozen=True)
class Dialect:
    """What the engine must know about one family of shells.

    ``number`` is the API's ``shellDialect``. ``builtin`` is the word that reaches a builtin behind a function of the
    same name, and ``plainly`` removes a function that has the name of that word itself. ``exports`` prints the exported
    variables as ``export -p`` does. The shell keeps the values of the variables in ``kept`` by itself, so that they can
    only be exported; it takes its orders by those in ``orders``. ``family`` prints which of the other shells one called
    sh is. ``fork`` makes a process of its own of ``( … )`` where it is none by itself. ``streams`` are the
    redirections of a command, and ``hold`` defines the functions around it where it can open descriptors beyond 9.
    ``untrap`` takes back what a command may have set to run with each word that follows, or in place of one.
    ``renewal`` opens the session's streams anew. ``functions`` prints the functions and aliases that a shell may
    have been started with. ``preparation`` is run once, before all commands. ``put`` prints its argument, in which
    ``\\0ooo`` stands for the byte of that number, and nothing after it. ``newline`` is how one is written within single
    quotes. ``interpreter`` is, for a shell that cannot supervise, the sh text that runs a command in it.
    """

    number: int
    names: tuple[str, ...]
    options: tuple[str, ...] = ()
    builtin: str = "command"
    plainly: str = r"\unset -f command"
    kept: frozenset[bytes] = frozenset({b"PPID"})
    orders: frozenset[bytes] = frozenset()
    exports: str = "command export -p"
    fork: str = ""
    streams: str = ">&8 2>&9 8>&- 9>&-"
    hold: str = ""
    untrap: str = ":"
    renewal: str = f"command {_RENEWAL}"
    functions: str = ""
    family: str = ""
    preparation: str = ":"
    put: str = '${builtin} printf %b "$$1"'
    newline: bytes = b"\n"
    interpreter: Template | None = None

    def quoted(self, word: bytes) -> bytes:
        """Return ``word`` as one word of this shell, whatever bytes it holds."""
        return quote(word) if self.newline == b"\n" else quote(word).replace(b"\n", self.newline)

    def behind(self, family: Dialect, kept: frozenset[bytes]) -> Dialect:
        """Return this dialect as ``family`` speaks it, the shell behind the name: sh may be any of them.

        ``kept`` are the variables that the shell which it supervises keeps too.
        """
        kept |= family.kept
        return replace(self, kept=kept, orders=family.orders, fork=family.fork, newline=family.newline)

    def hello(self, nonce: str, *, merged: bool) -> bytes:
        """Return the text that turns a freshly started shell into a supervisor and makes it describe itself.

        Where the channel has but one stream of output (``merged``), both descriptors are that one. Signals that a
        command sends to ``$$`` meet a trap that does nothing; an ignored one would be ignored by every command too.
        A directory that the shell's user may not enter, as that of whoever called sudo, is left for the user's home.
        """
        return _HELLO.substitute(
            merge=_MERGE if merged else ":",
            raw="_cm_raw <&8;" if merged else "",
            raw_stdout="_cm_raw <&1;" if merged else "",
            renew="_cm_renew(){ :;}" if merged else _RENEW.substitute(renewal=self.renewal),
            end_of_stderr="" if merged else '_cm_say "$2" >&9;',
            done_on_stderr="" if merged else ';_cm_say "$2" >&2',
            functions=self.functions,
            family=self.family or f"{self.builtin} echo",
            preparation=self.preparation,
            put=Template(self.put).substitute(builtin=self.builtin),
            builtin=self.builtin,
            plainly=self.plainly,
            exports=self.exports,
            nonce=nonce,
            fork=self.fork,
            hold=self.hold or ":",
            untrap=self.untrap,
        ).encode()


# ksh93 and mksh know where they are just while that exists. ksh93 says 256 + N where signal N ended a command, of which
# `exit` would leave N.
# A command may set the terminal as it likes; in its usual mode frames would be echoed, and cut.
_MERGE = 'exec 9>&8;eval "_cm_raw(){ $(command -v stty||echo :) raw -echo||:;}"'

# A command that makes its output non-blocking (asyncio) does so for all who share it. Opened anew, it is another; that
# goes with pipes in Linux, but not with sockets, with pipes of another user, or where a terminal would get an owner.
# A failing `exec` alone would end some shells.
_RENEW = Template("""if (${renewal});then _cm_renew(){ ${renewal}||:;};else _cm_renew(){ :;};fi""")

_HELLO = Template(r"""${merge}
unset CONNMGR_BOOT
${preparation}
${hold}
case "$$PWD" in /*) ${builtin} [ -x . ]&&${builtin} [ . -ef "$$PWD" ];; *) ! :;; esac||${builtin} cd||${builtin} cd /
trap : HUP INT QUIT TERM USR1 USR2 ALRM
_cm_gone(){ ${builtin} echo ":$$2$$1" >&8;}
_cm_dump(){ ${plainly}||:;${builtin} set +x;${untrap};${raw}{ ${builtin} unset CONNMGR_COMMAND
${builtin} echo ":$$2c";${builtin} pwd||${builtin} echo "$$PWD"
if ${builtin} [ -d /proc/$$$$/cwd ]&&! ${builtin} [ . -ef /proc/$$$$/cwd ];then
${builtin} echo ":$$2p";${builtin} [ . -ef "$$PWD" ]||/bin/pwd -P||${builtin} echo /dev/null;fi
${builtin} echo ":$$2v";${exports};${builtin} echo ":$$2x";} >&8
exec >&8 2>&9 8>&- 9>&-;${builtin} exit "$$(($$1>256?$$1-128:$$1))";}
${renew}
_cm_put(){ ${put};}
_cm_say(){ ${builtin} echo ":$$1"||{ sleep 1;${builtin} echo ":$$1";};}
_cm_end(){ ${raw}_cm_say "$$2 $$1" >&8;${end_of_stderr}hash -r;_cm_renew;}
_cm_done(){ ${raw_stdout}_cm_say "$$2 $$1"${done_on_stderr};}
(${fork}${builtin} echo "facts ${nonce} $$$$" >&8
{ ${builtin} read -r os </proc/sys/kernel/ostype||os=$$(uname -s);${builtin} echo "$$os";} >&8
{ os=$$(. /etc/os-release&&${builtin} echo "$$PRETTY_NAME");nl=$${IFS#??}
case "$$os" in ?*) ;; *) os=$$(uname -sr);; esac;${builtin} echo "$${os%%"$${nl%"$${nl#?}"}"*}";} >&8
${family} >&8
${builtin} echo "$${TMPDIR:-/tmp}" >&8
{ ${functions}
:;} >&8
_cm_dump 0 ${nonce})
_cm_end 0 ${nonce}
""")

# zsh does not read back what its own `export -p` prints for control characters and bytes above 127.
# Arrays may be marked, but are not exported.
_ZSH_EXPORTS = (
    "builtin emulate -L zsh -o extendedglob;builtin local _cm_k;builtin local -a _cm_e;"
    'for _cm_k in "${(@k)parameters[(R)(scalar|integer|float)*export*~*readonly*special*]}";do '
    '_cm_e+=("export $_cm_k=${(qq)${(P)_cm_k}}");done;'
    '(($#_cm_e))&&builtin print -rl -- "${(@)_cm_e}"'
)

_FISH = Template(
    "printf %s ${command}|{ ${shell} --no-config -c '"
    "read -lz __cm_q </dev/fd/7;set -e __cm_q[2];"
    # Of a redirection that fails, `eval` itself says nothing.
    'eval "$$__cm_q\n;set __cm_r \\$$status";set __cm_s $$status;'
    "set -q __cm_r;or set __cm_r $$__cm_s;set -eg fish_trace CONNMGR_COMMAND;"
    'builtin printf ":%sc\\n" ${nonce};builtin pwd;'
    "if builtin test -d /proc/'$$$$'/cwd;and not builtin test . -ef /proc/'$$$$'/cwd 2>/dev/null;"
    'builtin printf ":%sp\\n" ${nonce};builtin test . -ef "$$PWD";or /bin/pwd -P;or builtin echo /dev/null;end;'
    'builtin printf ":%sv\\n" ${nonce};${env} -0;'
    'builtin printf ":%sx\\n" ${nonce};builtin exit $$__cm_r'
    "' 7<&0 <&6 6<&-;}"
)

_CSH = Template(
    "printf '%s\n%s\n' ${command} '"
    # Quoted, as against an alias, a builtin's name is looked up in PATH.
    "set _cm_r=$$status\nunalias *\nunset echo verbose\nset echo_style=bsd\nunsetenv CONNMGR_COMMAND\n"
    "echo -n :;echo ${nonce}c;echo $$cwd:q\n"
    "if ( $$?tcsh && -d /proc/'$$$$'/cwd ) then\nif ( -F . != -F /proc/'$$$$'/cwd ) then\n"
    "echo -n :;echo ${nonce}p\nif ( -F . != -F $$cwd:q ) /bin/pwd -P || echo /dev/null\nendif\nendif\n"
    "echo -n :;echo ${nonce}v;${env} -0;echo -n :;echo ${nonce}x\n"
    "exit $$_cm_r'|{ ${shell} -f /dev/fd/7 7<&0 <&6 6<&-;}"
)

# What a redirection replaces is kept in the first free descriptor from 10, or in bash from that which is copied: both
# are out of the way of the numbers that scripts use. Not every sh reads numbers of two digits.
_HOLD_COPIES = """if { exec 254>&8;} 2>&-;then exec 254>&-;_cm_streams=(248 249 248 249)
_cm_hold(){ exec 248>&8 249>&9;};_cm_free(){ exec 8>&- 9>&- 248>&- 249>&-;}
else _cm_streams=(8 9 - -);_cm_hold(){ :;};_cm_free(){ :;};fi"""
_TEN = range(10, 20)
_HOLD_TEN = (
    f"if (exec {_TEN[-1]}>&8);then _cm_hold(){{ exec {' '.join(f'{number}>&8' for number in _TEN)};}};"
    f"_cm_free(){{ exec {' '.join(f'{number}>&-' for number in _TEN)};}};else _cm_hold(){{ :;}};_cm_free(){{ :;}};fi"
)
_USUAL_OPTIONS = "set +aefuvxC"  # bash takes others from its environment
# While POSIXLY_CORRECT is set, bash finds its own `unset` before a function of that name.
_BASH_PLAINLY = (
    "POSIXLY_CORRECT=${POSIXLY_CORRECT-_cm_};unset -f builtin enable;enable builtin exit echo pwd export trap unset [;"
    'case "$POSIXLY_CORRECT" in _cm_) unset POSIXLY_CORRECT;; esac'
)
_UNTRAP = "command trap - DEBUG ERR||:"
# `cd -` goes where OLDPWD says, which lasts as exported variables do; a ksh exports it only where it came exported.
_KEEP_DIRECTORY_BEFORE = "export OLDPWD"

SH = Dialect(
    0,
    ("sh",),
    hold=_HOLD_TEN,
    untrap=_UNTRAP,
    preparation=f"{_USUAL_OPTIONS};{_KEEP_DIRECTORY_BEFORE}",
    functions='case "$BASH_VERSION" in ?*) declare -F;; *) typeset +f;; esac',
    family='case "$KSH_VERSION" in Version*) command echo ksh93;; '
    '*) command echo "${BASH_VERSION:+bash}${ZSH_VERSION:+zsh}";; esac',
    # Whoever has no printf of its own is asked what it is; KSH_VERSION may be any shell's variable.
    put='if PATH=/dev/null command -v printf >/dev/null;then command printf %b "$$1";'
    'else case "$$KSH_VERSION" in *" KSH "*) print -n -- "$$1";; *) command printf %b "$$1";; esac;fi',
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
        kept=frozenset(b"PPID SHLVL UID EUID SHELLOPTS BASHOPTS".split()),
        orders=frozenset(b"FUNCNEST histchars BASH_XTRACEFD".split()),
        untrap="builtin trap - DEBUG ERR RETURN;builtin unset -f exec",
        renewal=_RENEWAL,
        functions="declare -F",
        preparation=_USUAL_OPTIONS,
    ),
    Dialect(2, ("dash",)),
    Dialect(3, ("ash",), kept=frozenset({b"PPID", b"SHLVL"}), hold=_HOLD_TEN),
    Dialect(
        4,
        ("zsh",),
        options=("-f", "+i"),
        builtin="builtin",
        plainly='case "${+functions[builtin]}" in 1) unset -f builtin;; esac',
        kept=frozenset(b"PPID SHLVL UID EUID GID EGID USERNAME".split()),
        orders=frozenset(b"FUNCNEST histchars HISTCHARS DIRSTACKSIZE".split()),
        exports=_ZSH_EXPORTS,
        untrap="builtin trap - DEBUG ERR;builtin unset -f exec||:",
        renewal=_RENEWAL,
        functions="typeset +f;unalias run-help which-command;alias",
        preparation="zmodload zsh/parameter;unsetopt hashdirs",
    ),
    Dialect(
        5,
        ("mksh", "lksh", "oksh", "loksh", "pdksh"),
        untrap=_UNTRAP,
        functions="typeset +f",
        preparation=_KEEP_DIRECTORY_BEFORE,
        put='print -n -- "$$1"',
    ),
    # ksh93 runs `( … )` within itself, where a timeout could not kill it alone; setting a limit makes it fork. On a
    # terminal it loses what it has read of a quoted string when the next line comes.
    Dialect(
        5,
        ("ksh", "ksh93", "ksh93u+m"),
        kept=frozenset({b"PPID", b"SHLVL"}),
        untrap=_UNTRAP,
        fork='ulimit -Ht "$(ulimit -Ht)";',
        newline=b"'$'\\n''",
        preparation=_KEEP_DIRECTORY_BEFORE,
    ),
    Dialect(6, ("fish",), kept=frozenset({b"SHLVL"}), interpreter=_FISH),
    Dialect(7, ("csh", "tcsh", "bsd-csh"), kept=frozenset({b"SHLVL"}), interpreter=_CSH),
)


def dialect_of(name: str) -> Dialect:
    """Return the dialect of a shell by the last part of its path.

    :raises UnsupportedShell: the engine does not speak it.
    """
    for dialect in DIALECTS:
        if name in dialect.names:
            return dialect
    raise UnsupportedShell(
        f"{name[:80]!r} cannot host a session; set the connection's shell to one of: {', '.join(SHELL_NAMES)}."
    )


SHELL_NAMES = tuple(dialect.names[0] for dialect in DIALECTS)
