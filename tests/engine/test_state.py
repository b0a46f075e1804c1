"""The working directory and exported variables last from command to command, whatever their content."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connmgr.engine.script import quote
from connmgr.engine.session import Session
from connmgr.engine.state import State, parse_environment, parse_exports
from connmgr.errors import NoSuchDirectory
from tests.engine.shells import assert_usable, only, out, run

ODD_VALUES = [
    b"",
    b" ",
    b"\n",
    b"a\n\n",
    b"a\nb",
    b"'",
    b'"',
    b"\\",
    b"a'b\"c\\d",
    b"$x `y` $(z) ${w}",
    b"\t\x01\x1b\x7f",
    b"export A=1\nexport B='y",
    b"! ~ * ? [a] {b,c} # & ; | < >",
    b"-n",
    b"a=b",
    "h\u00e9\u03bb\U0001f600".encode(),
    b"\x80\xfe\xff",
    bytes(range(1, 256)),
]


def exported(session: Session, name: bytes) -> list[bytes]:
    entries = bytes(run(session, "env -0").stdout).split(b"\0")
    return [entry.removeprefix(name + b"=") for entry in entries if entry.startswith(name + b"=")]


def test_odd_values_last(posix: Session) -> None:
    for value in ODD_VALUES:
        run(posix, b"export ODD=" + quote(value))
        assert exported(posix, b"ODD") == [value]
    run(posix, "unset ODD")
    assert exported(posix, b"ODD") == []
    assert_usable(posix)


def test_odd_values_last_in_fish(fish: Session) -> None:
    for value in ODD_VALUES:
        run(fish, "set -gx ODD " + ("".join(f"\\X{byte:02x}" for byte in value) or "''"))
        assert exported(fish, b"ODD") == [value]
    run(fish, "set -e ODD")
    assert exported(fish, b"ODD") == []


def test_values_last_in_csh(tcsh: Session) -> None:
    for value in (b"", b" ", b"x  y", b"'", b'"', b"\\", "h\u00e9".encode(), b"$x `y`"):
        run(tcsh, b"setenv ODD " + quote(value))
        assert exported(tcsh, b"ODD") == [value]
    run(tcsh, "unsetenv ODD")
    assert exported(tcsh, b"ODD") == []


@pytest.mark.parametrize(
    "text",
    [
        'setenv PATH ""',
        "unsetenv PATH",
        "set path=()",
        "unset path",
        "alias echo ls",
        "set echo_style=none",
        "set noglob",
    ],
)
def test_the_directory_lasts_in_csh_whatever_was_set(tcsh: Session, text: str) -> None:
    result = run(tcsh, f"cd /usr; {text}")
    assert (result.exit_code, bytes(result.stdout), bytes(result.stderr)) == (0, b"", b"")
    assert out(tcsh, "echo $cwd") == "/usr\n"


@pytest.mark.parametrize("name", ["a b", "x'y", "new\nline", "$(x)", "-n", "\u00e9", "*", "\\", " "])
def test_odd_directories_last(posix: Session, tmp_path: Path, name: str) -> None:
    directory = tmp_path / name
    directory.mkdir()
    run(posix, b"cd " + quote(str(directory).encode()))
    assert out(posix, "/bin/pwd") == f"{directory}\n"
    assert_usable(posix)


def test_directory_lasts_in_interpreted_shells(interpreted: Session, tmp_path: Path) -> None:
    run(interpreted, f"cd {tmp_path}")
    assert out(interpreted, "pwd") == f"{tmp_path}\n"


def test_path_may_be_emptied_and_set_again(posix: Session) -> None:
    before = out(posix, 'echo "$PATH"')
    run(posix, "export PATH=")
    assert run(posix, "ls").exit_code == 127
    assert out(posix, 'echo "[$PATH]"') == "[]\n"
    run(posix, f"export PATH='{before.strip()}'")
    assert run(posix, "ls /").exit_code == 0
    assert_usable(posix)


def test_a_command_that_leaves_keeps_the_state_before_it(posix: Session) -> None:
    run(posix, "cd /usr; export KEPT=1")
    run(posix, "cd /; export KEPT=2; exit 4")
    assert out(posix, 'pwd; echo "$KEPT"') == "/usr\n1\n"


def test_options_hold_for_one_command(any_shell: Session, tmp_path: Path) -> None:
    before = out(any_shell, "pwd")
    result = run(any_shell, "pwd; env", directory=str(tmp_path).encode(), environment={"ONCE": "a'b \u00e9"})
    lines = bytes(result.stdout).decode().splitlines()
    assert lines[0] == str(tmp_path)
    assert "ONCE=a'b \u00e9" in lines
    assert out(any_shell, "pwd") == before
    assert exported(any_shell, b"ONCE") == []


def test_unknown_cwd_is_refused_and_nothing_runs(any_shell: Session, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(NoSuchDirectory, match="cwd"):
        run(any_shell, f"touch {mark}", directory=b"/no/such")
    assert not mark.exists()
    assert_usable(any_shell)


def test_cwd_is_a_path_whatever_it_looks_like(any_shell: Session, tmp_path: Path) -> None:
    run(any_shell, "cd /usr")
    run(any_shell, f"cd {tmp_path}")
    for name in ("--", "-", "-P", "-L", "-e", "+1", "~"):
        with pytest.raises(NoSuchDirectory):
            run(any_shell, "pwd", directory=name.encode())
        (tmp_path / name).mkdir()
        assert out(any_shell, "/bin/pwd", directory=name.encode()) == f"{tmp_path / name}\n"


def test_cwd_is_not_looked_for_in_cdpath(posix: Session, tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "name").mkdir(parents=True)
    run(posix, f"cd {tmp_path}; export CDPATH={tmp_path}/elsewhere; true")
    with pytest.raises(NoSuchDirectory):
        run(posix, "pwd", directory=b"name")


def test_directory_deleted_before_it_is_entered(any_shell: Session, tmp_path: Path) -> None:
    doomed, mark = tmp_path / "doomed", tmp_path / "mark"
    doomed.mkdir()
    before = out(any_shell, "pwd")
    run(any_shell, f"cd {doomed}")
    doomed.rmdir()
    with pytest.raises(NoSuchDirectory):
        run(any_shell, f"touch {mark}")
    assert not mark.exists(), "the command ran in another directory than the session's"
    assert out(any_shell, "pwd") == before


def test_directory_deleted_by_the_command_that_entered_it(any_shell: Session, tmp_path: Path) -> None:
    doomed, mark = tmp_path / "doomed", tmp_path / "mark"
    doomed.mkdir()
    run(any_shell, f"cd {tmp_path}")
    run(any_shell, f"cd {doomed}; rmdir {doomed}")
    with pytest.raises(NoSuchDirectory, match=str(tmp_path)):
        run(any_shell, f"touch {mark}")
    assert not mark.exists(), "the command ran in another directory than the session's"
    assert out(any_shell, "pwd") == f"{tmp_path}\n"


@pytest.mark.parametrize("posix", only("sh", "bash", "dash", "ksh93", "mksh", "ash"), indirect=True)
def test_the_directory_before_is_known_to_cd(posix: Session) -> None:
    run(posix, "cd /usr; cd /etc; true")
    assert out(posix, "cd - >/dev/null; pwd") == "/usr\n"
    assert out(posix, "cd - >/dev/null; pwd") == "/etc\n"
    run(posix, "cd /")
    assert out(posix, "cd - >/dev/null; pwd") == "/etc\n"


def test_directory_deleted_underneath(posix: Session, tmp_path: Path) -> None:
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    run(posix, f"cd {doomed}")
    run(posix, "true")
    doomed.rmdir()
    assert_usable(posix)
    assert out(posix, "cd /usr; pwd") == "/usr\n"
    assert out(posix, "pwd") == "/usr\n"


@pytest.mark.parametrize("posix", only("zsh"), indirect=True)
def test_variables_that_zsh_keeps_by_itself_may_be_exported(posix: Session) -> None:
    for name in ("status", "ARGC", "HISTCMD", "LINENO", "TTYIDLE", "ZSH_SUBSHELL", "ZSH_EVAL_CONTEXT", "PPID"):
        run(posix, f"export {name}")
        assert run(posix, f"export {name}=1").exit_code == 1
        assert_usable(posix)
    run(posix, "typeset -rx KEPT=1")
    assert out(posix, "echo $KEPT") == "1\n"


@pytest.mark.parametrize("posix", only("bash", "zsh"), indirect=True)
def test_variables_by_which_a_shell_reads_do_not_reach_the_session(posix: Session) -> None:
    for assignment in ("BASH_XTRACEFD=8", "BASH_XTRACEFD=9", "histchars=/x:y", "histchars=", "HISTCHARS=/x:y"):
        run(posix, f"export {assignment}")
        run(posix, f"cd /usr; unset {assignment.partition('=')[0]}")
        assert out(posix, "cd /; true; cd /usr; pwd") == "/usr\n"
        assert out(posix, "pwd") == "/usr\n"
        assert_usable(posix)
        run(posix, "cd /")


def test_a_variable_that_cannot_be_set_is_complained_of(posix: Session) -> None:
    for name in ("status", "PPID", "LINENO", "OPTIND", "UID"):
        result = run(posix, "echo ran", environment={name: "x y"})
        assert result.stdout or result.stderr, f"{name}: neither run nor said why"
    assert_usable(posix)


@settings(deadline=None)
@given(
    st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True), st.binary(max_size=40), min_size=1)
)
def test_any_environment_is_read_back(variables: dict[str, bytes]) -> None:
    values = {name.encode(): value.replace(b"\0", b"") for name, value in variables.items()}
    printed = b"".join(b"export " + name + b"=" + quote(value) + b"\n" for name, value in values.items())
    statements = {name: b"export " + name + b"=" + quote(value) + b";" for name, value in values.items()}
    assert parse_exports(printed) == statements
    assert parse_environment(b"".join(name + b"=" + value + b"\0" for name, value in values.items())) == statements


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_malformed_dumps_change_nothing(noise: bytes) -> None:
    state = State()
    state.update(b"/", b"export A=1\n", from_env=False)
    if parse_exports(noise) is None:
        assert state.update(b"/", noise, from_env=False) == b""
        assert state.variables == {b"A": b"export A=1;"}


def test_only_what_changed_is_put_back() -> None:
    state = State()
    state.update(b"/", b"export A=1\nexport B=2\n", from_env=False)
    assert state.update(b"/", b"export A=1\nexport B=3\n", from_env=False) == b"command export B=3;"
    assert state.update(b"/", b"export A=1\n", from_env=False) == b"command unset B;"
    assert state.update(b"/x", b"export A=1\n", from_env=False) == b""
    assert state.directory == b"/x"


def test_a_dump_that_does_not_begin_with_a_directory_is_refused() -> None:
    state = State()
    state.update(b"/x", b"export A=1\n", from_env=False)
    assert state.update(b"noise\n/y", b"export A=2\n", from_env=False) == b""
    assert (state.directory, state.variables) == (b"/x", {b"A": b"export A=1;"})
