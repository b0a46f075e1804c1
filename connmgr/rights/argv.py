"""Reads a command's text strictly as an argv.

A text that a shell reads differently must not deceive rules over argvs. So a text counts as an argv only if every
shell of a session (sh, bash, dash, ash, zsh, ksh, fish, csh) executes exactly these words.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# An unquoted tilde is literal after a letter, as in `HEAD~1`, but expanded at a beginning, after `=` and after `:`.
# Characters are matched in runs: one at a time, a text of a megabyte would stop all other threads for 0.1 seconds.
_PLAIN = re.compile(r"(?:[\w./:@%+,=-]+|(?<=\w)~)+", re.ASCII)
_ESCAPED = re.compile(r"""\\([ *?\[\](){};&|<>$"'#])""")
# fish reads `\\` and `\'` as one character, and zsh may read two quotes in a row as one.
_SINGLE = re.compile(r"'([^'\\!]*(?:\\(?![\\'!])[^'\\!]*)*)'(?!')")
_DOUBLE = re.compile(r'"([^"\\$`!]*)"')
_PIECES = (_PLAIN, _ESCAPED, _SINGLE, _DOUBLE)
_BLANKS = re.compile(" +")

_EXPANDED_AT_A_BEGINNING = ("=", "%")
"""``=ls`` is a path for zsh, ``=1`` a directory for tcsh, ``%self`` a number for fish."""

_OPERATORS = "|&;"
_OPERATOR = re.compile(r"(?:&&|\|\||\||;)(?![|&;])")
MAX_PARTS = 20

_NAME = re.compile(r"\w[\w.+-]*", re.ASCII)
# csh reads a word that ends in a colon as a label.
_PATH = re.compile(r"[\w./][^=]*(?<!:)", re.ASCII)

_SHELLS_OWN = b"""
alias autoload bg bind bindkey break builtin bye caller case cd chdir command compadd comparguments compcall compctl
compdescribe compfiles compgen compgroups complete compopt compound compquote compset comptags comptry compvalues
continue coproc declare dirs disable disown do done echotc echoti elif else emulate enable end enum esac eval exec
exit export fc fg fi float for foreach function functions getln getopts global hash help hist history if in integer
jobs let limit local log login logout mapfile nameref namespace nocorrect noglob popd print private pushd pushln r
read readarray readonly redirect rehash repeat return run-help sched select set setopt shift shopt source stop suspend
then time times trap ttyctl type typeset ulimit umask unalias unfunction unhash unlimit unset unsetopt until vared
wait whence where which-command while zcompile zformat zle zmodload zparseopts zregexparse zstyle

_ abbr and argparse begin block breakpoint cdh commandline contains count dirh emit funced funcsave isatty math nextd
not or path prevd psub random set_color setenv status string switch

alloc breaksw builtins default endif endsw filetest glob goto hashstat hup ls-F newgrp notify onintr rootnode setpath
setspath settc setty telltc termname uncomplete unsetenv ver warp watchlog
"""
SHELLS_OWN = frozenset(_SHELLS_OWN.decode().split())
"""Words that a shell handles itself, without a program that does the same: of sh to zsh, of fish, of csh."""


def as_argv(text: str) -> tuple[str, ...] | None:
    """Return the program and words that every shell would execute for ``text``; None for anything else, or in doubt.

    The text is one simple command of literal words; their quotes are removed.
    """
    end, words = _simple(text, 0)
    return words if end == len(text) else None


class Compound(NamedTuple):
    """Simple commands with the operators between them: ``|``, ``;``, and one of ``&&`` and ``||``."""

    parts: tuple[tuple[str, ...], ...]
    operators: tuple[str, ...]

    def reads_pipe(self, part: int) -> bool:
        """Whether a part's input is the output of the part before."""
        return part > 0 and self.operators[part - 1] == "|"


def as_compound(text: str) -> Compound | None:
    """Return the commands that every shell would make of ``text``; None for a single one, another text, or in doubt."""
    parts: list[tuple[str, ...]] = []
    operators: list[str] = []
    position = 0
    while True:
        end, words = _simple(text, position, _OPERATORS)
        if words is None or len(parts) == MAX_PARTS:
            return None
        parts.append(words)
        if end == len(text):
            break
        found = _OPERATOR.match(text, end)
        if found is None:
            return None
        operators.append(found[0])
        position = found.end()
    # In sh both bind alike, in csh one binds more tightly than the other.
    if not operators or {"&&", "||"} <= set(operators):
        return None
    return Compound(tuple(parts), tuple(operators))


def _simple(text: str, position: int, ends: str = "") -> tuple[int, tuple[str, ...] | None]:
    """Return where the simple command at ``position`` ends, and its words; None if it is not one."""
    words: list[str] = []
    position = _past_blanks(text, position)
    while position < len(text) and text[position] not in ends:
        end, word = _word(text, position, ends)
        if word is None or text.startswith(_EXPANDED_AT_A_BEGINNING, position):
            return position, None
        words.append(word)
        position = _past_blanks(text, end)
    return position, tuple(words) if words and _is_program(words[0]) else None


def _past_blanks(text: str, position: int) -> int:
    found = _BLANKS.match(text, position)
    return found.end() if found else position


def _word(text: str, position: int, ends: str) -> tuple[int, str | None]:
    """Return the end of the word at ``position``, and the word without quotes; None if it is not literal."""
    word = ""
    while position < len(text) and text[position] != " " and text[position] not in ends:
        found = next((match for piece in _PIECES if (match := piece.match(text, position))), None)
        if found is None or not found[0].isprintable():
            return position, None
        word += found[found.lastindex or 0]
        position = found.end()
        if not word and text.startswith(_EXPANDED_AT_A_BEGINNING, position):
            # zsh removes empty quotes first: `""=ls` is the path of ls there.
            return position, None
    return position, word


def _is_program(word: str) -> bool:
    if "/" in word:
        return _PATH.fullmatch(word) is not None
    return _NAME.fullmatch(word) is not None and word not in SHELLS_OWN
