"""A session stays in the directory of its last command, even if names on its path change."""

from __future__ import annotations

from pathlib import Path

import pytest

from connmgr.engine.session import Session
from connmgr.errors import NoSuchDirectory
from connmgr.plugin import Channel
from connmgr_local.transport import LocalTransport
from tests.engine.shells import ALL, assert_usable, local_session, only, out, run

# ksh93 itself (93u+m/1.0.4) ignores a cd to the name of the directory that it is in, as it does in a person's terminal.
FOLLOWING = [case for case in ALL if case.id != "ksh93"]


following = pytest.mark.parametrize("any_shell", FOLLOWING, indirect=True)


def turn(link: Path) -> None:
    link.unlink()
    link.symlink_to("new")


def place(session: Session) -> str:
    return out(session, "env -u PWD /bin/pwd -P").removesuffix("\n")


@following
def test_cd_follows_a_link_that_was_turned(any_shell: Session, link: Path) -> None:
    run(any_shell, f"cd {link}")
    assert place(any_shell) == str(link.parent / "old")
    turn(link)
    run(any_shell, f"cd {link}")
    assert place(any_shell) == str(link.parent / "new"), "cd to the same name, which leads elsewhere, went nowhere"
    assert_usable(any_shell)


@following
def test_cd_follows_a_link_that_the_command_itself_turned(any_shell: Session, link: Path) -> None:
    run(any_shell, f"cd {link}")
    run(any_shell, f"ln -sfn new {link}; cd {link}")
    assert place(any_shell) == str(link.parent / "new")


@following
def test_cd_enters_a_directory_that_was_made_anew(any_shell: Session, link: Path) -> None:
    directory = link.parent / "old"
    run(any_shell, f"cd {directory}")
    assert place(any_shell) == str(directory)
    run(any_shell, f"rmdir {directory}; mkdir {directory}; cd {directory}; touch first")
    run(any_shell, "touch second")
    assert sorted(entry.name for entry in directory.iterdir()) == ["first", "second"]


def test_a_session_goes_where_its_command_went_although_the_name_is_the_same(any_shell: Session, link: Path) -> None:
    directory = link.parent / "old"
    run(any_shell, f"cd {directory}")
    run(any_shell, f"cd ..; rmdir {directory}; mkdir {directory}; cd {directory}; touch first")
    assert place(any_shell) == str(directory)
    run(any_shell, "touch second")
    assert sorted(entry.name for entry in directory.iterdir()) == ["first", "second"]
    run(any_shell, f"cd {link}")
    run(any_shell, f"cd /; ln -sfn new {link}; cd {link}")
    assert place(any_shell) == str(link.parent / "new")


# zsh keeps the directory before by itself, whatever OLDPWD says.
@pytest.mark.parametrize("posix", only("sh", "bash", "dash", "ksh93", "mksh", "ash"), indirect=True)
def test_the_directory_before_is_the_users_although_the_session_took_a_way_around(posix: Session, link: Path) -> None:
    run(posix, f"cd /usr; cd {link}")
    run(posix, f"cd /usr; ln -sfn new {link}; cd {link}")
    assert place(posix) == str(link.parent / "new")
    assert out(posix, "cd - >/dev/null; pwd") == "/usr\n"


def test_a_directory_made_anew_that_is_gone_again_leaves_the_session_where_it_says(
    any_shell: Session, link: Path
) -> None:
    directory = link.parent / "old"
    run(any_shell, f"cd {directory}")
    run(any_shell, f"cd ..; rmdir {directory}; mkdir {directory}; cd {directory}")
    directory.rmdir()
    with pytest.raises(NoSuchDirectory, match=r"back in /\."):
        run(any_shell, "true")
    assert place(any_shell) == "/"


def test_a_session_stays_where_it_is_until_it_is_told_to_go(any_shell: Session, link: Path) -> None:
    run(any_shell, f"cd {link}")
    assert place(any_shell) == str(link.parent / "old")
    assert run(any_shell, "true; set x = y").exit_code == 0
    turn(link)
    assert place(any_shell) == str(link.parent / "old"), "the session followed a link without a cd"
    assert run(any_shell, "true; set x = y").exit_code == 0
    assert place(any_shell) == str(link.parent / "old"), "the session followed a link without a cd"


@following
def test_a_directory_that_the_command_moved_is_followed(any_shell: Session, link: Path) -> None:
    old, moved = link.parent / "old", link.parent / "moved"
    run(any_shell, f"cd {old}; mv {old} {moved}; mkdir {old}")
    assert place(any_shell) == str(moved), "the session is in another directory than its command was"


@pytest.fixture(params=ALL)
def any_shell_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class _FromNowhere(LocalTransport):
    """Opens channels, and removes their directory before the program runs."""

    def open_channel(self, argv, **options):  # type: ignore[no-untyped-def]
        words = ["/bin/sh", "-c", 'd=$(mktemp -d);cd "$d";rmdir "$d";exec "$@"', "sh", *argv]
        channel: Channel = super().open_channel(words, **options)
        return channel


def test_a_session_that_begins_in_a_directory_that_is_gone_begins_at_home(any_shell_name: str) -> None:
    with local_session(any_shell_name, transport=_FromNowhere()) as session:
        home = str(Path.home())
        for _ in range(3):
            assert run(session, "true; true").exit_code == 0
            assert place(session) == home
        run(session, "cd /usr")
        assert place(session) == "/usr"
