"""In a running shell of each kind, nothing runs for a token but the words that its rules allow."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from connmgr.rights.programs import as_argv, as_compound
from tests.api.wire import add
from tests.components import program
from tests.daemon import Daemon
from tests.rights.wire import create

SHELLS = ["bash", "dash", "busybox", "zsh", "ksh93", "mksh", "fish", "tcsh"]

# It writes its name and words into a new file of the log, each with a byte behind it that no word has.
_NOTER = """#!/bin/sh
printf '%s\\0' "$0" "$@" >"$(mktemp "{log}/XXXXXXXX")"
"""

BETWEEN = re.split(" +", r"& && || ; ;; ;& | |& &| &! ;and ;or ;not -| >>| &> >| 2>")
BETWEEN += re.split(
    "(.)", "\n\r\0\x0b\x0c\t\x85\u2028\u3000\u00a0\x1b\x7f\u200b\u202e\ufeff\x1a\x04\x1e", flags=re.DOTALL
)[1::2]
BETWEEN += ["\r\n", "\\\n", "\n\n", " \n"]
"""What one shell or another may read as the end of a command."""

WITHIN = re.findall(
    r"\S+",
    r"""
$(EVIL) `EVIL` "$(EVIL)" "`EVIL`" <(EVIL) >(EVIL) =(EVIL) (EVIL) $[EVIL] $((EVIL)) ${x:-$(EVIL)} ${x:=`EVIL`} ${(e)x}
${(P)x} ${|EVIL;} {EVIL,} *(e:EVIL:) *(+EVIL) ./*(e;EVIL;) =EVIL ""=EVIL ~+ ~- ~0 ~EVIL ~root x=~ %1 !! !EVIL !$ ^a^EVIL
\!! '!!' "!!" $'\nEVIL\n' $"EVIL" @(EVIL) ~(e)EVIL * ? [a] {a,b} {1..9} +(a) <1-9> ** a#b a^b [ ] $ $$ $PATH ${IFS}
<<<EVIL >EVIL 2>&1 >&EVIL &>EVIL <EVIL >>EVIL <>EVIL # ' " \ 'a''b' '' "" '''' "a"'b' \' \" \\ '\' '\\' a=b x[$(EVIL)]=1
""",
)
WITHIN += ["${ EVIL;}", '"${ EVIL; }"', "<<E\n$(EVIL)\nE", "<<-E\nEVIL\nE", "a #b", "\\ "]
"""What one shell or another may read as something else than a word."""

BEFORE = r"""
PS4='$(EVIL)' _  IFS=x _  ENV=EVIL _  PATH=/tmp _  LC_ALL=/tmp _  x[$(EVIL)]=1 _  exec _  command _  builtin _  eval _
noglob _  - _  nocorrect _  ! _  time _  coproc _  function _  env _  set -x; _  alias _=EVIL; _  \_  if _  begin; _
{ _  ( _  @ _  fc -s _  trap EVIL EXIT; _  [ _  _()  _ ()  _ () EVIL;  _:  : _  _&  %_  =_  ~/_  ./_  EVIL
"""
"""What may stand before a program, or make another one of it; ``_`` is the program."""

PIECES = [
    "EVIL",
    "a",
    "b",
    " ",
    "  ",
    "''",
    '""',
    "\\'",
    "$(",
    "&&",
    "ä",
    *"\u00a0\n\t'\"\\$`(){};&|<>~=#!*?[]^%@,./-+:",
]


def texts() -> list[str]:
    found = [f"_ a{between}EVIL{between}_ b" for between in BETWEEN] + [f"_ a {between} EVIL" for between in BETWEEN]
    found += [
        text for within in WITHIN for text in (f"_ {within}", f"_ a{within}", f"_ '' {within} b", f'_ "a"{within}')
    ]
    found += [f"{before} a" for before in re.split(r"\s{2,}|\n", BEFORE) if before]
    chance = random.Random(7)
    for _ in range(100):
        found.append("_ " + "".join(chance.choices(PIECES, k=chance.randint(1, 9))))
        words = "".join(chance.choices(["a", "b", " ", "''", '"a"', "'b c'", "\\;", "-", "%", "=", ","], k=6))
        found.append(f"_ a{chance.choice(['&&', ' ; ', ' | ', '||'])}_ b{words}")
    return found


WORDS = [
    *([character] for character in "\t\x7f\x80\u0085\u2028\u00a0\ufeff\u200b'\"\\!~=*#- "),
    *([word] for word in ("a\nb", "a\r", "\r\n", "\x0b\x0c", "\x1b[2J", "\x1a\x04\x03", "ä€😀", "''", "'\\''", "\\n")),
    *([word] for word in ("\\'", "$(EVIL)", "`EVIL`", "!!", "^a^b", "-n", "--", "-c", "", "~root", "%1")),
    *([word] for word in ("=EVIL", "a=b", "{a,b}", "a\nEVIL\n", "\u202eEVIL", "a\x00EVIL", "\ud800", "\udcff\udc0a")),
    *([character * size] for character, size in (("x", 70_000), ("'", 3000), ("\n", 3000), ("\\", 3001), ("é", 3000))),
    *([word, "EVIL"] for word in (";", "&&", "|", "\n", "\\\n", "a\\", "")),
    ["a"] * 500,
]  # fmt: skip


class Place(NamedTuple):
    """A connection with one shell, and the directory of what has run there."""

    connection: str
    tools: Path

    def words(self, text: str) -> str:
        """Return a text with the programs in place of their names."""
        return re.sub("EVIL|_", lambda name: f"{self.tools}/{'evil' if name[0] == 'EVIL' else 'noter'}", text)

    def ran(self) -> list[tuple[str, ...]]:
        """Return which programs have run since the last call, with their words."""
        found = []
        for file in sorted((self.tools / "log").iterdir()):
            found.append(tuple(word.decode(errors="surrogateescape") for word in file.read_bytes().split(b"\0")[:-1]))
            file.unlink()
        return found

    @property
    def rules(self) -> list[dict[str, Any]]:
        any_words = {"rest": {"re": "(?s).*"}}
        return [{"effect": "allow", "argv": [str(self.tools / "noter"), any_words], "mayRunOthers": True}]


# What somebody else has left in the shell.
_EXPORTS = "export IFS=x PS4='$(EVIL)' ENV=EVIL BASH_ENV=EVIL ZDOTDIR=/tmp CDPATH=/ FPATH=/tmp _cm_name=EVIL"
_SETTINGS = {
    "bash": f"noter() {{ EVIL; }}; export -f noter; {_EXPORTS}",
    "fish": "set -gx IFS x; set -gx PS4 x; set -gx fish_trace 1",
    "tcsh": "setenv IFS x; setenv PS4 x",
}


@pytest.fixture(params=SHELLS)
def place(request: pytest.FixtureRequest, clean_daemon: Daemon, tmp_path: Path) -> Place:
    shell = program(request.param)
    if shell is None:
        pytest.skip(f"needs {request.param}: the program is not installed")
    if request.param == "busybox":
        (tmp_path / "ash").symlink_to(shell)
        shell = str(tmp_path / "ash")
    (tmp_path / "log").mkdir()
    for name in ("noter", "evil"):
        (tmp_path / name).write_text(_NOTER.format(log=tmp_path / "log"))
        (tmp_path / name).chmod(0o755)
    place = Place(add(clean_daemon.client, "there", type="local", shell=shell), tmp_path)
    clean_daemon.client.shell.start(place.connection)
    clean_daemon.client.shell.exec(
        place.connection, _SETTINGS.get(request.param, _EXPORTS).replace("EVIL", f"{tmp_path}/evil")
    )
    place.ran()
    return place


def test_of_a_text_nothing_runs_but_its_words(clean_daemon: Daemon, place: Place) -> None:
    holder = create(clean_daemon, "shell.any", rules=place.rules)
    outcomes = []
    for text in map(place.words, texts()):
        answer = holder.send("/shell/exec", connection=place.connection, command=text)
        ran, argv, compound = place.ran(), as_argv(text), as_compound(text)
        words = {argv} if argv is not None else set(compound.parts) if compound is not None else set()
        if answer.status != 200:
            assert ran == [], text
        elif compound is None:
            assert ran == [argv], text
        else:
            assert set(ran) <= words, text
        outcomes.append(answer.status)
    assert min(map(outcomes.count, (200, 403))) > 50


def test_words_arrive_as_the_rules_have_seen_them(clean_daemon: Daemon, place: Place) -> None:
    holder = create(clean_daemon, "shell.argv", rules=place.rules)
    for words in WORDS:
        for argv in (["_", *words], ["_", "a", *words, "b"]):
            argv = list(map(place.words, argv))
            answer = holder.send("/shell/exec", connection=place.connection, argv=argv)
            assert place.ran() == ([tuple(argv)] if answer.status == 200 else []), ascii(words)[:80]
