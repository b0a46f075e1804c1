"""Reads the text of a command as an argv, where every shell would read it as that."""

from __future__ import annotations

import re

_WORDS = re.compile(r"[A-Za-z0-9_./+-][A-Za-z0-9_@%+:,./-]*(?: +[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./-]*)*")
_BUILTINS = """
    . : alias bg break builtin case cd command continue coproc declare dirs do done elif else end enable esac eval
    exec exit export fg fi for foreach function getopts hash history if in jobs let local logout nocorrect noglob
    onintr popd pushd read readonly rehash repeat return select set setenv shift shopt source suspend switch then time
    times trap typeset ulimit umask unalias unset unsetenv until wait while
"""
_NO_PROGRAMS = frozenset(_BUILTINS.split())


def as_argv(text: str) -> tuple[str, ...] | None:
    """Return the words of ``text`` if it is one program with literal words, None for anything else or in doubt."""
    words = tuple(text.split(" "))
    if not _WORDS.fullmatch(text) or words[0] in _NO_PROGRAMS:
        return None
    return tuple(filter(None, words))
