"""A text counts as an argv only where every shell executes exactly these words."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connmgr.engine.envelope import HARMLESS
from connmgr.engine.envelope import SHELLS_OWN as ENGINES
from connmgr.rights.programs import SHELLS_OWN, as_argv
from tests.components import program
from tests.hostile import quickly
from tests.recorder import recorded, write_recorder

SHELLS = ["sh", "bash", "dash", "zsh -f", "ksh93", "mksh", "busybox sh", "fish --no-config", "tcsh -f"]

READ = {
    "ls": ["ls"],
    "  ls  -l   /srv  ": ["ls", "-l", "/srv"],
    "systemctl restart nginx.service": ["systemctl", "restart", "nginx.service"],
    "/usr/bin/env": ["/usr/bin/env"],
    "./run a,b c@d e+f g%h i:j k=l": ["./run", "a,b", "c@d", "e+f", "g%h", "i:j", "k=l"],
    "git log HEAD~1 --since=2.days": ["git", "log", "HEAD~1", "--since=2.days"],
    "rm backup~": ["rm", "backup~"],
    "'ls' \"-l\"": ["ls", "-l"],
    "l's' -\"l\"": ["ls", "-l"],
    "'/opt/a program' x": ["/opt/a program", "x"],
    "echo '' \"\" a''": ["echo", "", "", "a"],
    "echo 'a  b' \"c  d\"": ["echo", "a  b", "c  d"],
    "echo '$HOME `id` \"*\" ~ ; & | > < ( ) { } # ^'": ["echo", '$HOME `id` "*" ~ ; & | > < ( ) { } # ^'],
    'echo "it\'s * ? [a] ~ ; & | > < ( ) { } # ^"': ["echo", "it's * ? [a] ~ ; & | > < ( ) { } # ^"],
    "find . -name \\*.log \\( -size +1k \\) \\;": ["find", ".", "-name", "*.log", "(", "-size", "+1k", ")", ";"],
    "touch a\\ b \\$x \\'y\\' \\\"z\\\" \\#": ["touch", "a b", "$x", "'y'", '"z"', "#"],
    "sed 's/\\./-/' f": ["sed", "s/\\./-/", "f"],
    "grep -E '\\bx\\b' f": ["grep", "-E", "\\bx\\b", "f"],
    "echo 'it'\\''s' 'it'\"'\"'s'": ["echo", "it's", "it's"],
    "echo 'ä€😀' \"ß\"": ["echo", "ä€😀", "ß"],
    "date +%s": ["date", "+%s"],
    "kill -TERM 4711": ["kill", "-TERM", "4711"],
    "dd if=/dev/zero of=x bs=1": ["dd", "if=/dev/zero", "of=x", "bs=1"],
    "0install 1 2": ["0install", "1", "2"],
    "x a~ --x=1 'b\\c' \"d'e\" \\*\\ \\' a:b~c": ["x", "a~", "--x=1", "b\\c", "d'e", "* '", "a:b~c"],
}

# Some shell reads each of these texts as something other than a program and its literal words. Three blanks or a new
# line separate the texts.
HOSTILE = {
    "no program": r"""''   ""   '' ls   \\   "" x""",
    "several commands": r"""a; b   a ;   ; a   a && b   a || b   a | b   a |& b   a & b   a &   a&b   a;;   (a)   (a
        { a; }   ! a   a !   f() { a; }   a () b""",
    "redirections": r"""a >x   a>x   a >>x   a <x   a 2>&1   a 2>x   a <<E   a <<<x   a <(b)   a >(b)   a &>x   >x a
        <x a   a >|x   a <>x   {x}>y a   a ^b   2>x""",
    "expansions": r"""a $x   a ${x}   a $(b)   a `b`   a $((1))   a $[1]   a "$x"   a "$(b)"   a "`b`"   $x   `a`   a $
        a x$   a $'b'   a $"b"   a '$x'$x   a "x"$x   a \\$x""",
    "globs": r"""a *   a ?   a [b]   a b*   a ]   [ -f x ]   a +(b)   a @(b)   a !(b)   a b^c   a b#c   a <1-5>   a 'b'*
        a "b"?   /bin/l?""",
    "tildes": r"""a ~   a ~/x   a ~root   a x=~   a x=~/y   a x:~/y   a --x=~   ~/a   a ''~x   a 'x'~   a \x~   a /~""",
    "braces": r"""a {b,c}   a b{1..3}   a {}   a }   {   }   a b}""",
    "comments": r"""#   # a   a # b   a #   a b#   #a""",
    "history": r"""!!   a !!   a !b   a '!b'   a "!b"   a \!b   ^a^b   a b!   a 'b\!'""",
    "expansions behind empty quotes": r"""a ""=ls   a ''=ls   a ''""=ls   a ""''=   a ""==   a ""~   a ''~root   a ""%1
        ''=ls   a ""x=~   a ''""%1""",
    "assignments": r"""x=1   x=1 a   x= a   x+=1 a   x[0]=1 a   a/b=c   a/b=c d   'x=1' a   x'='1 a   =a   a =b   a =1
        /a=b c   A=~ b""",
    "open quotes": r"""a 'b   a "b   a b'   a b"   a \\   a 'b' 'c   a "b" "c""",
    "quotes of several meanings": r"""a 'b\\c'   a 'b\'   a 'b''c'   a ''''   a "b\c"   a "b\"c"   a "\$x"   a \b   \a
        a \~   a \n   a \t   a \-   a 'b'\c   a b\=c   a \%1   'a''b' c""",
    "jobs, options and labels": r"""%1   %   a %1   a %self   a:   /a/b:   /a/b: c   :   : a   @ x   @   -   - a   -x
        +x   ,a   ..   .   'a:' b""",
    "words of shells": r"""cd /   export A=b   source x   . x   eval a   exec a   set -e   trap a EXIT   alias a=b
        unset a   command a   builtin a   noglob a   time a   coproc a   if a   then a   while a   for a   case a   exit
        [[ a ]]   function a   'cd' /   c'd' /   "exec" a   setenv a b   foreach a   and a   not a   repeat 3 a   read a
        umask 0   wait   _ a   breakpoint   run-help a   which-command a   uncomplete a""",
    "letters beyond ASCII without quotes": "ä   a ä   a x'y'é   é/x   \ufeffa   a \u200b   a\u00a0b   a \x85",
}
CONTROLS = ["", " ", "a\nb", "a\n", "\na", "a\r", "a\r\nb", "a\x0bb", "a\x0cb", "a\tb", "\ta", "a\0b", "a 'b\nc'"]
CONTROLS += ["a b\\\nc", "a \\\n", "a \\", "a '\x1b'", "a '\x7f'", "a '\t'", "a '\u00a0'", "a '\u2028'", "a '\ud800'"]
CONTROLS += ["a '\u202e'", 'a "\u200e"', "a '\x9b'", 'a "b\nc"']
REFUSED = [*(text for texts in HOSTILE.values() for text in re.split(r"\n +| {3,}", texts)), *CONTROLS]


@pytest.mark.parametrize("text", READ)
def test_a_program_with_literal_words_is_an_argv(text: str) -> None:
    assert as_argv(text) == tuple(READ[text])


@pytest.mark.parametrize("text", [pytest.param(text, id=ascii(text)) for text in REFUSED])
def test_any_other_text_is_refused(text: str) -> None:
    assert as_argv(text) is None


def test_a_builtin_is_refused_unless_a_program_does_the_same() -> None:
    assert {word.decode() for word in ENGINES if as_argv(word.decode())} == {
        *("kill", "nohup", "printf", "realpath", "rename", "which")
    }
    assert all(as_argv(f"{word.decode()} x") for word in HARMLESS - {b"["})
    assert not any(as_argv(word) or as_argv(f"'{word}' x") for word in SHELLS_OWN)


LISTS = {
    "bash": "compgen -b; compgen -k",
    "zsh -f": "print -l ${(k)builtins} ${(k)reswords} ${(k)aliases} ${(k)functions}",
    "ksh93": "builtin | grep -v /; alias | sed 's/=.*//'",
    "mksh": "alias | sed 's/=.*//'",
    "fish --no-config": "builtin -n",
    "tcsh -f": "builtins",
}
SAME_AS_PROGRAMS = {word.decode() for word in HARMLESS} | {
    "kill",
    "nice",
    "nohup",
    "printenv",
    "printf",
    "realpath",
    "which",
}


@pytest.mark.parametrize("shell", LISTS)
def test_words_that_the_shell_handles_itself_do_not_count_as_programs(shell: str) -> None:
    if program(shell.split()[0]) is None:
        pytest.skip(f"needs {shell.split()[0]}: the program is not installed")
    listed = subprocess.run([*shell.split(), "-c", LISTS[shell]], capture_output=True, text=True, check=True).stdout
    assert len(listed.split()) > 10
    assert {word for word in listed.split() if as_argv(word)} <= SAME_AS_PROGRAMS


@pytest.mark.parametrize("begin", ["a '", 'a "', "a ", "a \\ ", "a ' ", "a 'b'"])
@pytest.mark.parametrize("middle", ["'", '"', "\\", "a", " ", "~", "a~", "\\'", "''", '""', "' '"])
def test_texts_are_read_in_linear_time(begin: str, middle: str) -> None:
    with quickly():
        as_argv(begin + middle * 30_000)


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recorder(tmp_path_factory.mktemp("argv") / "recorder")


def check_in_shells(recorder: Path, text: str, shells: Sequence[str] = SHELLS) -> None:
    """Check that each installed one of ``shells`` executes the argv read from ``text``; PROGRAM is a recorder."""
    text = text.replace("PROGRAM", str(recorder))
    argv = as_argv(text)
    if argv is None:
        return
    assert argv[0] == str(recorder)
    for shell in shells:
        if program(shell.split()[0]) is None:
            continue
        command, place = [*shell.split(), "-c", text], recorder.parent
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, cwd=place, check=False)
        assert (done.returncode, done.stderr) == (0, b""), f"{shell}: {text!r}"
        assert recorded(done.stdout).words == tuple(word.encode() for word in argv[1:]), f"{shell}: {text!r}"


@pytest.mark.parametrize("text", [text for text in READ if " " in text.strip()])
def test_shells_execute_the_argv_that_is_read(recorder: Path, text: str) -> None:
    argv = as_argv(text)
    assert argv
    words = text.strip()[text.strip().index(" ") :] if "'/opt" not in text else " x"
    assert as_argv(f"PROGRAM{words}") == ("PROGRAM", *argv[1:])
    check_in_shells(recorder, f"PROGRAM{words}")


LETTERS = "ab1_./:@%+,=-~^ *?[]{}()<>$;&|#\\'\"!ä\u00a0\t\n"
UNQUOTED = st.text(st.sampled_from("ab1_./:@%+,=-~"), max_size=5)
SINGLE = st.text(st.sampled_from(LETTERS.replace("'", "")), max_size=5).map("'{}'".format)
DOUBLE = st.text(st.sampled_from(LETTERS.replace('"', "")), max_size=5).map('"{}"'.format)
ESCAPED = st.sampled_from(LETTERS).map("\\{}".format)
WORD = st.lists(st.one_of(UNQUOTED, SINGLE, DOUBLE, ESCAPED), min_size=1, max_size=3).map("".join)
TEXT = st.one_of(st.lists(WORD, max_size=4).map(" ".join), st.text(st.sampled_from(LETTERS), max_size=8))
NAME = st.sampled_from(["PROGRAM", "'PROGRAM'", '"PROGRAM"', "PROGRAM''", "  PROGRAM"])


@settings(max_examples=250, deadline=None)
@given(name=NAME, text=TEXT, third=st.integers(0, 2))
def test_every_shell_executes_generated_texts_as_the_argv_that_is_read(
    recorder: Path, name: str, text: str, third: int
) -> None:
    check_in_shells(recorder, f"{name} {text}", SHELLS[third::3])


PIECES = r"""
    '' "" = == ls =ls a 1 % %1 ~ ~root a~ - -- x= --x= : + @ , . / ! ^ # \= \~ \# \ '=' "=" '~' "%1" 'a' "b"
"""
ODD_WORD = st.lists(st.sampled_from([*PIECES.split(), "\\ "]), min_size=1, max_size=4).map("".join)


@settings(max_examples=150, deadline=None)
@given(words=st.lists(ODD_WORD, min_size=1, max_size=12), third=st.integers(0, 2))
def test_every_shell_reads_words_of_quotes_and_signs_alike(recorder: Path, words: list[str], third: int) -> None:
    # Many words at once, because each shell takes some milliseconds to start.
    known = [word for word in words if as_argv(f"PROGRAM {word}")]
    check_in_shells(recorder, " ".join(["PROGRAM", *known]), SHELLS[third::3])


@settings(max_examples=200)
@given(st.lists(st.text(st.sampled_from("ab/. *$`\"(){};&|<>#~ä'"), max_size=6), max_size=5))
def test_words_quoted_by_shlex_are_read(words: list[str]) -> None:
    assert as_argv(shlex.join(["ls", *words])) == ("ls", *words)
