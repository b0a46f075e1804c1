"""Special variables of shells last if possible, and harm no session."""

from __future__ import annotations

import string

import pytest

from connmgr.engine.session import Session
from connmgr.engine.state import State, parse_environment
from tests.engine.shells import ALL, POSIX, assert_usable, local_session, only, out, run


@pytest.mark.parametrize("posix", only("zsh"), indirect=True)
@pytest.mark.parametrize(
    "text",
    [
        "export path",
        "export cdpath",
        "export fpath manpath module_path",
        "typeset -ax array; array=(a b)",
        "typeset -Ax table; table=(a b)",
        "typeset -xTU TIED tied; TIED=a:b",
        "typeset -xi16 number=255",
        "typeset -xF float=1.5",
        "typeset -xU path",
        "export k=1 e=2",
    ],
)
def test_exporting_any_zsh_parameter_keeps_the_session(posix: Session, text: str) -> None:
    expected = run(posix, f"{text}; env | sort | grep -v -e ^_= -e ^CONNMGR")
    run(posix, text)
    listed = run(posix, "env | sort | grep -v -e ^_= -e ^CONNMGR; true")
    assert bytes(listed.stdout) == bytes(expected.stdout), "what was exported is not what a command is given"
    assert_usable(posix)


@pytest.mark.parametrize("posix", only("sh", "dash", "ash", "ksh93", "mksh"), indirect=True)
@pytest.mark.parametrize("name", ["UID", "EUID", "GID", "EGID", "histchars", "FUNCNEST", "USERNAME", "BASH_XTRACEFD"])
def test_a_variable_that_means_nothing_to_a_shell_lasts(posix: Session, name: str) -> None:
    if out(posix, 'echo "${BASH_VERSION:-}"') != "\n":
        pytest.skip("sh is bash here")
    run(posix, f"export {name}=7")
    assert out(posix, f"env | grep ^{name}=; true") == f"{name}=7\n"
    run(posix, f"unset {name}")
    assert out(posix, f"env | grep ^{name}=; true") == ""


@pytest.mark.parametrize("posix", only("bash", "zsh"), indirect=True)
def test_a_variable_that_a_shell_keeps_may_be_exported(posix: Session) -> None:
    run(posix, "export UID")
    uid = out(posix, "id -u")
    assert out(posix, "env | grep ^UID=; true") == f"UID={uid}"


def test_a_tilde_in_a_variable_is_not_expanded(posix: Session) -> None:
    for value in ("~", "x:~/y", "~root", "a=~", "a=~:~", "a b:~"):
        run(posix, f"export TILDE='{value}'")
        run(posix, "export OTHER=1")
        assert out(posix, 'echo "$TILDE"; true') == f"{value}\n"


def test_a_session_may_be_left_without_variables(posix: Session) -> None:
    names = out(posix, "env | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'").split()
    run(posix, "unset " + " ".join(name for name in names if name not in {"PPID", "_", "SHLVL"}))
    assert out(posix, 'echo "${HOME-none} ${PATH-none}"').startswith("none"), "what was unset came back"
    run(posix, "export HOME=/usr PATH=/bin")
    assert out(posix, "cd; pwd") == "/usr\n"


def test_an_empty_state_unsets_variables_but_an_empty_environment_does_not() -> None:
    state = State()
    state.update(b"/", b"export A=1\n", from_env=False)
    assert state.update(b"/", b"", from_env=False) == b"command unset A;"
    state.update(b"/", b"A=1\0", from_env=True)
    assert state.update(b"/", b"", from_env=True) == b"", "env that could not be run unset everything"
    assert parse_environment(b"") is None


@pytest.mark.parametrize("shell", ALL)
def test_variables_of_any_name_reach_the_session_as_they_are(monkeypatch: pytest.MonkeyPatch, shell: str) -> None:
    variables = {name: f"the user's {name}" for name in [*string.ascii_lowercase, "line", "mark", "nl", "own", "word"]}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with local_session(shell) as session:
        listed = out(session, "env").splitlines()
        assert {f"{name}={value}" for name, value in variables.items()} - set(listed) == set()


VALUES = ("", "0", "1", "x y", "-1", "*", "a[1", "$(echo run >&2)")
SPECIAL = {
    "sh": "OPTIND PPID LINENO",
    "bash": "FUNCNEST OPTIND POSIXLY_CORRECT BASH_COMPAT GLOBIGNORE EXECIGNORE ENV BASH_ENV TMOUT PS4 LC_ALL SHELLOPTS",
    "dash": "OPTIND PPID LINENO PS4 ENV TMOUT",
    "ash": "OPTIND PPID LINENO PS4 ENV TMOUT FUNCNAME",
    "zsh": "FUNCNEST DIRSTACKSIZE OPTIND NULLCMD READNULLCMD KEYBOARD_HACK STTY TMOUT PS4 LC_ALL SECONDS USERNAME",
    "ksh93": "FUNCNEST OPTIND JOBMAX TMOUT PS4 ENV VPATH SECONDS LC_ALL LINENO",
    "mksh": "OPTIND TMOUT PS4 ENV SECONDS LINENO COLUMNS PGRP USER_ID",
}


@pytest.mark.parametrize(
    ("posix", "name"),
    [
        pytest.param(*shell.values, name, id=f"{shell.id}-{name}", marks=shell.marks)
        for shell in POSIX
        for name in SPECIAL[str(shell.id)].split()
    ],
    indirect=["posix"],
)
def test_no_value_of_a_special_variable_harms_the_session(posix: Session, name: str) -> None:
    for value in VALUES:
        run(posix, f"cd /; export {name}='{value}'")
        result = run(posix, "cd /usr; echo ran; /bin/true; false")
        assert (result.exit_code, bytes(result.stdout)) == (1, b"ran\n"), f"{name}={value!r}: {result.stderr!r}"
        assert out(posix, "/bin/pwd") == "/usr\n"
    run(posix, f"unset {name}")
    assert_usable(posix)


@pytest.mark.parametrize("name", ["OPTIND", "PPID", "UID", "LINENO", "SECONDS", "FUNCNEST", "IFS", "PS4", "SHLVL"])
def test_no_variable_of_another_language_harms_sh(interpreted: Session, name: str) -> None:
    setting = "set -gx" if interpreted.info.shell_dialect == 6 else "setenv"
    run(interpreted, f"{setting} {name} 'x y'")
    assert out(interpreted, "cd /usr; echo ran") == "ran\n"
    assert out(interpreted, "/bin/pwd") == "/usr\n"


@pytest.mark.needs("bash")
@pytest.mark.parametrize("option", ["errexit", "nounset", "noglob", "noclobber", "xtrace", "verbose", "allexport"])
def test_options_that_a_shell_is_started_with_harm_no_session(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    with local_session("bash") as session:
        expected = out(session, "cd /usr; false; echo $unset; echo /us*")
    monkeypatch.setenv("SHELLOPTS", option)
    with local_session("bash") as session:
        assert out(session, "cd /usr; false; echo $unset; echo /us*") == expected
        assert_usable(session)
