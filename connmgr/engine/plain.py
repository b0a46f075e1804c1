"""Finds commands that cannot change their session's state, and so can run with less effort.

They consist of programs with words and redirections. Programs cannot change the shell that runs them; only the shell's
builtins and functions can.
"""

from __future__ import annotations

import re

MAX_COMMAND_BYTES = 400
"""Longest command that is checked, in bytes: checking a longer one takes more time than it could save."""

BLANKS = b" \t\n"
"""Blanks around a command."""

HARMLESS = frozenset(b"[ basename cat cp cut dirname echo false getconf ln mktemp mv pwd sleep test true".split())
"""Builtins that change nothing in their shell."""

INSTANT = frozenset(b"echo false pwd true".split())
"""Builtins that also never wait."""

SHELLS_OWN = frozenset(
    b"""
    ! - . : [[ ]] { }
    alias autoload bg bind bindkey break builtin bye caller case cd chdir command compadd comparguments compcall compctl
    compdescribe compfiles compgen compgroups complete compopt compound compquote compset comptags comptry compvalues
    continue coproc declare dirs disable disown do done echotc echoti elif else emulate enable end enum esac eval exec
    exit export fc fg fi float for foreach function functions getln getopts global hash help hist history if in integer
    jobs kill let limit local log login logout mapfile nameref namespace nocorrect noglob nohup popd print printf
    private pushd pushln r read readarray readonly realpath redirect rehash rename repeat return sched select set setopt
    shift shopt source stop suspend then time times trap ttyctl type typeset ulimit umask unalias unfunction unhash
    unlimit unset unsetopt until vared wait whence where which while zcompile zformat zle zmodload zparseopts
    zregexparse zstyle
    """.split()
)
"""The other words of the supervising shells: keywords, builtins, and predefined aliases."""

_PROGRAM = rb"(?P<program>[A-Za-z0-9_.:/+\[-]+)(?![^\s|&;])"
# zsh reads a bracket after a variable as arithmetic, which may assign.
_VARIABLE = rb"\$[A-Za-z_]\w*(?![\w\[])"
_WORD = rb"""(?:[\w./:@%+,=*?~\[\]-]|VARIABLE|'[ -&(-~]*'|"(?:[ !#%-\[\]^_a-~]|VARIABLE)*")+"""
_WORD = _WORD.replace(b"VARIABLE", _VARIABLE)
_REDIRECTION = rb"[0-9]?(?:[<>]|>>)[ \t]*" + _WORD + rb"|[0-9]?>&[0-9]"
_SIMPLE = _PROGRAM + rb"(?:[ \t]+(?:" + _WORD + rb"|" + _REDIRECTION + rb"))*"
# Excludes words that a shell could reject, as zsh rejects a pattern without a match.
_SINGLE = re.compile(_PROGRAM + rb"(?:[ \t]+[\w./:@%+,-][\w./:@%+,=-]*)*")
_NAME = re.compile(rb"\w[\w.+-]*")
_NEXT = re.compile(rb"[ \t\n]*" + _SIMPLE + rb"[ \t]*(?P<joint>\|\||&&|[|;\n]|\Z)")


def is_single(text: bytes) -> bool:
    """Whether ``text`` is one program with simple words, which the supervisor may run without a subshell."""
    found = _SINGLE.fullmatch(text.strip(BLANKS))
    return found is not None and found["program"] not in SHELLS_OWN | HARMLESS - INSTANT


def is_program(name: bytes) -> bool:
    """Whether the quoted word ``name`` is a program for every supervising shell without functions."""
    return b"/" in name or (_NAME.fullmatch(name) is not None and name not in SHELLS_OWN | HARMLESS)


def is_plain(text: bytes) -> bool:
    """Whether the command ``text`` cannot change directory, variables or traps of the shell that runs it."""
    command, position = text.strip(BLANKS), 0
    if len(command) > MAX_COMMAND_BYTES:
        return False
    while True:
        found = _NEXT.match(command, position)
        if found is None or found["program"] in SHELLS_OWN:
            return False
        position = found.end()
        if position == len(command):
            return found["joint"] in {b"", b";"}
