"""Tells which commands cannot change their session's state, so that less need be done to run them.

They are made of nothing but programs with words and redirections. A program cannot change the shell that runs it; only
the shell's own words can, and its functions, where a session has any.
"""

from __future__ import annotations

import re

LONGEST = 400
"""Bytes beyond which looking is not worth it: such a command takes longer than what could be saved."""

BLANKS = b" \t\n"
"""What may stand around a command."""

HARMLESS = frozenset(b"[ basename cat cp cut dirname echo false getconf ln mktemp mv pwd sleep test true".split())
"""The words of a shell's own that change nothing in it."""

INSTANT = frozenset(b"echo false pwd true".split())
"""Those that never wait for anything either."""

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
"""The other words of the shells that can supervise: keywords, builtins, and aliases that they are born with."""

_PROGRAM = rb"(?P<program>[A-Za-z0-9_.:/+\[-]+)(?![^\s|&;])"
# zsh takes what follows one in brackets for arithmetic, which may assign.
_VARIABLE = rb"\$[A-Za-z_]\w*(?![\w\[])"
_WORD = rb"""(?:[\w./:@%+,=*?~\[\]-]|VARIABLE|'[ -&(-~]*'|"(?:[ !#%-\[\]^_a-~]|VARIABLE)*")+"""
_WORD = _WORD.replace(b"VARIABLE", _VARIABLE)
_REDIRECTION = rb"[0-9]?(?:[<>]|>>)[ \t]*" + _WORD + rb"|[0-9]?>&[0-9]"
_SIMPLE = _PROGRAM + rb"(?:[ \t]+(?:" + _WORD + rb"|" + _REDIRECTION + rb"))*"
# No words that a shell could take offence at and stop for, as zsh does at a pattern that matches nothing.
_SINGLE = re.compile(_PROGRAM + rb"(?:[ \t]+[\w./:@%+,-][\w./:@%+,=-]*)*")
_NEXT = re.compile(rb"[ \t\n]*" + _SIMPLE + rb"[ \t]*(?P<joint>\|\||&&|[|;\n]|\Z)")


def is_single(text: bytes) -> bool:
    """Return whether ``text`` is one program with simple words, which the supervisor may run without a subshell."""
    found = _SINGLE.fullmatch(text.strip(BLANKS))
    return found is not None and found["program"] not in SHELLS_OWN | HARMLESS - INSTANT


def is_plain(text: bytes) -> bool:
    """Return whether the command ``text`` cannot change directory, variables or traps of the shell that runs it."""
    command, position = text.strip(BLANKS), 0
    if len(command) > LONGEST:
        return False
    while True:
        found = _NEXT.match(command, position)
        if found is None or found["program"] in SHELLS_OWN:
            return False
        position = found.end()
        if position == len(command):
            return found["joint"] in {b"", b";"}
