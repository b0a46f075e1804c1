"""Writes docs/CLI.md and the man page docs/connmgr.1 from the commands themselves.

Run it with ``python scripts/describe_cli.py``; with ``--check`` it writes nothing, and exits with 1 if a file
differs.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path

import click

from connmgr.cli.examples import EXAMPLES
from connmgr.cli.exits import FROM_THE_COMMAND, MEANINGS
from connmgr.cli.root import main

DOCS = Path(__file__).parent.parent / "docs"
VERBATIM = "\b"
WIDTH = 130

SECTIONS = {
    "Naming connections": """
        A CONNECTION is named by its path, as `connmgr ls` shows it: `web`, or `web/root` for a connection that runs
        in it. The end of a path in whole segments (`root`) suffices if only one connection has it. A category may stand
        before the path (`customers/web`). The uuid always works. Letter case makes no difference. A part of a name is
        an error, which suggests whole ones; if several connections have a name, connmgr lists them. Then it does
        nothing. `local` is the machine of the daemon.

        `exec`, `shell`, `cp`, `info`, `disconnect` and `trust` also take the address of a machine without a stored
        connection: `deploy@web.example` or `ssh://deploy@web.example:2222`, for `cp` with `:path` behind it. The daemon
        keeps this connection in memory until a minute after its shell has ended. It works like a stored one, host key
        checks included, but has no jobs. `connmgr exec --store` stores it.

        A GLOB without `/` is matched against last names, one with `/` against paths, with the category or without it:
        `web*` and `customers/web*` match `customers/web1`. `*` stands for any characters within one segment, and `**`
        for any across segments: `fleet/*` matches the connections in the category `fleet` itself, `fleet/**` also those
        in the categories below it, and those that run in its connections. `?`, `[abc]`, `[!abc]` and `{a,b}` work too.
        Quote a GLOB, so that your own shell does not expand it.

        `connmgr ls` and `connmgr exec --all` take several GLOBs, and `--category`, `--type`, `--failed` and `--limit`
        narrow down their matches. A GLOB that matches nothing is an error, and then nothing runs at all.
        """,
    "Secrets": """
        `connmgr add ssh web host=web.example --secret password < password-file`

        Never write passwords, passphrases and keys on the command line, which every user of the machine can read.
        connmgr asks for them on the terminal without showing them, or reads them from standard input.

        If the vault has users, a session must unlock one to read secrets. Each command is a session of its own.
        `connmgr vault unlock USER` begins a session that later commands continue, in any terminal, until `connmgr vault
        lock` or the end of the daemon. Its token is in the file `session` beside the auth file. Only you can read the
        file, and every program of yours can use it. `connmgr --unlock USER exec web -- id` unlocks for one command
        only.
        """,
    "Running commands": """
        `connmgr exec web -- ls -l /srv` runs a command in the shell of a connection. It starts a missing shell and
        leaves the shell open, so that the next command costs 1 to 2 ms in the daemon (`make bench`). Each of your
        terminals, and each cron job, has a shell of its own on a connection, in which the directory and exported
        variables last from one command to the next.

        `--session NAME` uses another shell of the connection, which terminals can share, until `connmgr disconnect` or
        `idle-timeout`; `$CONNMGR_SESSION` names one too. `--session -` is the connection's own shell, which clients of
        the API share. `--fresh` runs a command in a new shell, which is stopped afterwards: it sees no directory or
        variables of earlier commands, and leaves none. `--sudo` runs it as root, in a further shell of its own.

        `connmgr exec web -- 'cd /srv && ls *.log'` quotes the command against your own shell. As with ssh, blanks join
        the words after `--` into one command for the far shell: quote a word with blanks for that shell too. With
        `--argv` no shell reads the words: `connmgr exec web --argv -- rm 'a file' '*'` removes exactly these two files.

        Output appears as it is printed. As with ssh, the command reads standard input if that is a pipe, a socket or a
        file; from a terminal it does so only with `--stdin`, and `-n` gives it no input. Ctrl-C, or any other end of
        `connmgr exec`, kills the command with all that it started.

        When a link breaks or a machine reboots, the next command has a new shell. connmgr says on standard error that
        its directory and variables are new, and with `--json` by `"restarted": true`. A command that may have been sent
        already is never repeated: it fails.

        `connmgr exec --all 'web*' db -j 20 -- uptime` runs a command on every connection that one of the GLOBs
        matches, twenty at a time. `--` must stand before the command. When all have finished, each output is printed
        once, below the names of the connections that share it; with `--brief` each connection has one line as soon as
        it finishes. The summary goes to standard error.
        """,
    "Jobs": """
        `connmgr exec --detach --name nightly web -- make -j4 all` starts a command as a job,
        in the directory and with the variables of the connection's shell, and prints its uuid. The job runs on after
        the end of this program, the shell, the link and the daemon. docs/LONG_COMMANDS.md has the details.

        A JOB is named by its `--name` or its uuid; where a command only reads, the first 8 digits of a uuid suffice. If
        several jobs have the name, connmgr lists them and does nothing.

        `connmgr job logs -f nightly` prints its output until its end. `connmgr job wait nightly` exits with its exit
        code. Both wait while the daemon is gone.
        """,
    "Importing and applying": """
        `connmgr import-ssh-config` and `connmgr import-ansible-inventory hosts.ini` show which hosts would become
        connections; `--apply` adds them. `connmgr export > vault.yaml` writes all connections into a file, and
        `connmgr apply -f vault.yaml` makes the vault match the file. Each stores everything in one step, or nothing,
        and reports for every connection: `new`, `changes`, `goes`, `there already`, `name taken` or `left out`, and
        afterwards `added`, `changed`, `removed`. docs/OPERATIONS.md describes the file.
        """,
    "JSON": """
        With `--json` a command prints the daemon's answer, as docs/API.md describes it. Messages for people go to
        standard error.
        """,
}

ENVIRONMENT = {
    "CONNMGR_HOST, CONNMGR_PORT": "Where the daemon listens, unless `--url` says it. Without both, the file "
    "`daemon.json` beside the auth file says it; without that file, config.toml.",
    "CONNMGR_AUTH_FILE": "The file that authenticates local clients, if it is not in its usual place.",
    "CONNMGR_TOKEN, CONNMGR_TOKEN_FILE, CONNMGR_API_KEY_FILE": "A token, a file with a token, or a file with the API "
    "key: the credential to send instead of the auth file. One of them at most; an option outranks it. An empty one "
    "is an error.",
    "CONNMGR_SESSION": "The shell that `exec`, `cp` and `shell` use where no `--session` names one.",
    "CONNMGR_CONFIG": "A file to use instead of config.toml. Every setting of docs/OPERATIONS.md is a variable too.",
}


@dataclass(frozen=True)
class Described:
    """A command, by the words that call it."""

    words: str
    usage: str
    paragraphs: list[str]
    options: list[tuple[str, str]]
    examples: list[str]


def commands() -> Iterator[Described]:
    """Yield each command that does something, in the order of the help."""
    yield from _below(main, click.Context(main, info_name="connmgr"))


def _below(command: click.Command, context: click.Context) -> Iterator[Described]:
    alone = not isinstance(command, click.Group) or command.invoke_without_command
    if alone and command is not main:
        yield _described(command, context)
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if inner is not None and not inner.hidden:
            yield from _below(inner, click.Context(inner, parent=context, info_name=name))


def _described(command: click.Command, context: click.Context) -> Described:
    pieces = " ".join(command.collect_usage_pieces(context))
    return Described(
        words=context.command_path,
        usage=f"{context.command_path} {pieces}".strip(),
        paragraphs=cleandoc(command.help or "").split("\n\n"),
        options=_options(command, context),
        examples=EXAMPLES[context.command_path.partition(" ")[2]],
    )


def _options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    found = [
        one
        for one in command.get_params(context)
        if isinstance(one, click.Option) and not one.hidden and "--help" not in one.opts
    ]
    return [(_names(one), _meaning(one)) for one in found]


def _names(option: click.Option) -> str:
    # Not as click would put it, which differs from one version of it to the next.
    names = ", ".join(sorted(option.opts, key=len))
    if option.is_flag:
        return names
    if option.metavar is None:
        raise ValueError(f"{names} needs a metavar, for the documentation.")
    return f"{names} {option.metavar}"


def _meaning(option: click.Option) -> str:
    shown = f" [default: {option.default}]" if option.show_default else ""
    return re.sub(r"\s+", " ", f"{option.help}{shown}")


def _sections() -> Iterator[tuple[str, list[str]]]:
    for title, text in SECTIONS.items():
        yield title, [re.sub(r"\s*\n\s*", " ", paragraph) for paragraph in cleandoc(text).split("\n\n")]


def markdown() -> str:
    """Return docs/CLI.md."""
    all_commands = list(commands())
    lines = [
        "# The command line",
        "",
        "For people who work in a terminal or write scripts. `make docs` writes this page from the commands' `--help`.",
        "",
        _markdown_text(cleandoc(main.help or "").split("\n\n")[0]),
        "",
    ]
    for title, paragraphs in _sections():
        lines += [f"## {title}", "", "\n\n".join(map(_filled, paragraphs)), ""]
    lines += ["## Exit codes", "", "| Exit code | Meaning |", "|---|---|"]
    lines += [f"| {code} | {meaning} |" for code, meaning in MEANINGS.items()]
    lines += ["", FROM_THE_COMMAND, ""]
    lines += ["## Environment", "", "| Variable | Meaning |", "|---|---|"]
    lines += [
        f"| {', '.join(f'`{name}`' for name in names.split(', '))} | {text} |" for names, text in ENVIRONMENT.items()
    ]
    lines += [
        "",
        "## Options of every command",
        "",
        "They stand before the command or after it: `connmgr --json ls`, `connmgr ls --json`.",
        "",
    ]
    lines += _markdown_options(_options(main, click.Context(main, info_name="connmgr")))
    lines += ["", "## Commands", ""]
    for one in all_commands:
        lines += [f"### {one.words}", "", "```", one.usage, "```", ""]
        for paragraph in one.paragraphs:
            lines += [_markdown_text(paragraph), ""]
        if one.options:
            lines += [*_markdown_options(one.options), ""]
        lines += ["```", *one.examples, "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_text(paragraph: str) -> str:
    if paragraph.startswith(VERBATIM):
        return "```\n" + paragraph.removeprefix(VERBATIM).strip("\n") + "\n```"
    return _filled(_escaped(paragraph))


def _filled(paragraph: str) -> str:
    # Code stays on one line, so that it can be copied.
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), re.sub(r"\s+", " ", paragraph))
    lines = textwrap.wrap(whole, WIDTH, break_long_words=False, break_on_hyphens=False)
    # A line that began with a lone - or # would be a list or a heading.
    return re.sub(r"\n([-#+>]|\d+\.)(?= )", r" \1", "\n".join(lines)).replace("\0", " ")


def _markdown_options(options: list[tuple[str, str]]) -> list[str]:
    cells = [(option.replace("|", r"\|"), _escaped(text)) for option, text in options]
    rows = [f"| `{option}` | {text} |" for option, text in cells]
    return ["| Option | Meaning |", "|---|---|", *rows]


def _escaped(text: str) -> str:
    return re.sub(r"([*|\[\]<>_])", r"\\\1", text)


def man_page() -> str:
    """Return docs/connmgr.1, in the man macros."""
    lines = [
        '.TH CONNMGR 1 "" "connmgr" "User Commands"',
        ".SH NAME",
        r"connmgr \- manage connections to machines, and work on them",
        ".SH SYNOPSIS",
        r".B connmgr",
        r"[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGUMENTS\fR]",
        ".SH DESCRIPTION",
        "A daemon keeps connections to machines, and shells on them. This program runs it, and is a client of it.",
        ".SH OPTIONS",
        *_man_options(_options(main, click.Context(main, info_name="connmgr"))),
        ".SH COMMANDS",
    ]
    for one in commands():
        lines += [f".SS {_roff(one.usage)}"]
        for number, paragraph in enumerate(one.paragraphs):
            lines += [".PP"] if number else []
            lines += _man_text(paragraph)
        lines += _man_options(one.options)
        lines += [".PP", ".nf", *map(_roff, one.examples), ".fi"]
    for title, paragraphs in _sections():
        lines.append(f".SH {title.upper()}")
        for number, paragraph in enumerate(paragraphs):
            lines += [*([".PP"] if number else []), _roff(paragraph.replace("`", ""))]
    lines.append(".SH EXIT STATUS")
    for code, meaning in MEANINGS.items():
        lines += [".TP", f".B {code}", _roff(meaning.replace("`", ""))]
    lines += [".PP", _roff(FROM_THE_COMMAND.replace("`", ""))]
    lines.append(".SH ENVIRONMENT")
    for names, text in ENVIRONMENT.items():
        lines += [".TP", f".B {_roff(names)}", _roff(text.replace("`", ""))]
    return "\n".join(lines) + "\n"


def _man_text(paragraph: str) -> list[str]:
    if paragraph.startswith(VERBATIM):
        verbatim = paragraph.removeprefix(VERBATIM).strip("\n").splitlines()
        return [".nf", *(_roff(line) for line in verbatim), ".fi"]
    return [_roff(re.sub(r"\s*\n\s*", " ", paragraph))]


def _man_options(options: list[tuple[str, str]]) -> list[str]:
    return [line for option, text in options for line in (".TP", f".B {_roff(option)}", _roff(text))]


def _roff(text: str) -> str:
    text = text.replace("\\", r"\e").replace("-", r"\-")
    # A line that begins with one of these would be an instruction.
    return rf"\&{text}" if text.startswith((".", "'")) else text


def run(*, check: bool) -> int:
    """Write both files, or with ``check`` return 1 where one differs."""
    outdated = []
    for name, text in (("CLI.md", markdown()), ("connmgr.1", man_page())):
        path = DOCS / name
        if not path.exists() or path.read_text() != text:
            outdated.append(name)
            if not check:
                path.write_text(text)
    if check and outdated:
        sys.stderr.write(f"Not as the commands are: {', '.join(outdated)}; `make docs` writes them anew.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run(check="--check" in sys.argv[1:]))
