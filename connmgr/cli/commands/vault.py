"""``connmgr vault``: who can read its secrets, its backups, and its key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from connmgr.cli.commands.tunnels import renew_sockets
from connmgr.cli.connect import ask_passphrase, connect, kept_session, tell_recoveries
from connmgr.cli.exits import Failure, io_failure
from connmgr.cli.options import Group, open_vault_database, read_settings, setting_options
from connmgr.cli.output import ago, json_option, plural, print_json, print_list, print_table
from connmgr.cli.progress import has_terminal
from connmgr.client import ClientError
from connmgr.printable import visible
from connmgr.settings import KEY_STORES

if TYPE_CHECKING:
    from connmgr.contract.vault import RecoveryKey, RecoveryWordsResponse
    from connmgr.vault.backup import Contents


@click.group(cls=Group)
def vault() -> None:
    """Look after the vault."""


@vault.command()
@json_option
def status(*, as_json: bool) -> None:
    """Show whether the vault has users, and which one is unlocked."""
    state = connect().vault.status()
    if as_json:
        print_json(state)
        return
    rows = [("users", "yes" if state.has_users else "none: every client may read its secrets")]
    if state.has_users:
        rows.append(("unlocked", state.user or "nobody"))
    if state.users:
        rows.append(("all users", ", ".join(state.users)))
    print_table([*rows, ("readable", ", ".join(state.principals) or "nothing")])


@vault.command()
@click.argument("user")
def unlock(user: str) -> None:
    """Unlock a user for later commands.

    The user stays unlocked until connmgr vault lock or the end of the daemon. It asks for the passphrase on the
    terminal; other standard input has it as a line. Later commands of yours, in any terminal, continue this session.
    Its token is in a file beside the auth file that only you can read. connmgr --unlock USER unlocks for a single
    command instead, and keeps nothing.
    """
    client = connect()
    tell_recoveries(user, client.vault.unlock(user, ask_passphrase(f"Passphrase of {user}")))
    kept_session().keep(client.session_token)
    # Control sockets have the rights of the session that opened them, in which no user was unlocked.
    renew_sockets(client)


@vault.command()
def lock() -> None:
    """Lock the user that connmgr vault unlock unlocked."""
    connect().vault.lock()
    kept_session().forget()


@vault.group(cls=Group)
def user() -> None:
    """Look after the vault's users."""


@user.command()
@click.argument("name", metavar="USER")
def add(name: str) -> None:
    """Add a user, and ask for the passphrase. The first user locks the vault for everybody else."""
    client = connect()
    if not client.vault.status().has_users:
        click.echo(
            "This is the vault's first user. From now on every script and session that needs a secret must unlock "
            f"one: `connmgr vault unlock {name}`, or `connmgr --unlock {name} …`.",
            err=True,
        )
    client.vault.add_user(name, ask_passphrase(f"Passphrase of {name}", confirm=True))


@user.command()
@click.argument("name", metavar="USER")
def passphrase(name: str) -> None:
    """Change a user's passphrase. It asks for the old and the new one, or reads them as two lines."""
    old = ask_passphrase(f"Passphrase of {name}")
    connect().vault.change_passphrase(name, old, ask_passphrase("New passphrase", confirm=True))


@user.command()
@click.argument("name", metavar="USER")
@click.option("--force", is_flag=True, help="Remove the user even if secrets are lost that nobody else can read.")
@json_option
def rm(name: str, *, force: bool, as_json: bool) -> None:
    """Remove a user, and list connections whose secrets must change.

    The user could read their secrets: change these passwords and keys on their machines. Secrets that nobody else can
    read are sealed anew, to the other user that is unlocked, or for every remaining user. That takes the user to be
    unlocked, or the passphrase, which the command asks for.
    """
    client = connect()
    try:
        removed = client.vault.remove_user(name, force=force)
    except ClientError as error:
        if error.code not in ("last_principal", "vault_locked"):
            raise
        click.echo(f"connmgr: {visible(error.message)}", err=True)
        # Only this user's passphrase opens what nobody else can open, so that it can be sealed for others.
        entered = ask_passphrase(f"Passphrase of {name}")
        if not entered:
            raise
        removed = client.vault.remove_user(name, passphrase=entered, force=force)
    if removed.resealed:
        reader = "every remaining user" if removed.heir == "vault" else removed.heir
        if removed.heir == "vault" and not client.vault.status().has_users:
            reader = "every client of the daemon"
        number = plural(len(removed.resealed), "connection")
        click.echo(f"connmgr: secrets of {number} that only {name} could read can be read by {reader} now.", err=True)
    if removed.lost:
        click.echo(f"connmgr: secrets of {plural(len(removed.lost), 'connection')} are lost.", err=True)
    if as_json:
        print_json(removed)
    elif removed.connections:
        print_table([(connection.id, connection.path) for connection in client.connection.info(removed.connections)])


@vault.group(cls=Group)
def recovery() -> None:
    """Look after recovery keys, for lost passphrases."""


def _needed_of(_context: click.Context, _option: click.Parameter, value: str) -> tuple[int, int]:
    """Return the two numbers of ``3/5``."""
    needed, _, shares = value.partition("/")
    if not needed.isdecimal() or not shares.isdecimal():
        raise click.BadParameter(f"{value!r} is not two numbers such as 3/5: three of five shares are needed.")
    return int(needed), int(shares)


@recovery.command(name="create")
@click.argument("name", metavar="[USER]", required=False)
@click.option(
    "--shares",
    callback=_needed_of,
    default="1/1",
    metavar="NEEDED/SHARES",
    help="Make several shares, and need some of them: 3/5 makes five, and any three of them are the key.",
)
@json_option
def create_recovery(name: str | None, shares: tuple[int, int], *, as_json: bool) -> None:
    """Make a recovery key, and print its words once.

    It asks for the passphrase of USER, by default of the one who is unlocked. Write the words on paper; nothing keeps
    them. They are the only way for USER to set a new passphrase when this one is lost: connmgr vault recovery use.
    """
    client = connect()
    user = name or client.vault.status().user
    if user is None:
        raise click.UsageError("No user is unlocked: name the USER of the recovery key.")
    needed, number = shares
    passphrase = ask_passphrase(f"Passphrase of {user}")
    _print_words(client.vault.create_recovery(user, passphrase, shares=number, threshold=needed), as_json=as_json)


@recovery.command(name="ls")
@json_option
def list_recoveries(*, as_json: bool) -> None:
    """List recovery keys, without their words."""

    def row(key: RecoveryKey) -> tuple[str, ...]:
        needed = f"{key.threshold} of {plural(key.shares, 'share')}"
        use = "never used" if key.used is None else f"used {ago(key.used)}"
        return key.recovery, key.user, needed, f"made {ago(key.created)}", use

    print_list(connect().vault.recoveries(), row, as_json=as_json)


@recovery.command(name="use")
def use_recovery() -> None:
    """Set a new passphrase by the words of a recovery key.

    It asks for share after share on the terminal until there are enough, and for the new passphrase; other standard
    input has each as a line. Sessions and secrets stay as they are. Rotate the key afterwards.
    """
    client = connect()
    shares, key = list[str](), None
    while key is None:
        shares.append(ask_passphrase(f"Words of share {len(shares) + 1}"))
        try:
            key = client.vault.recover(shares)
        except ClientError as error:
            if error.code == "wrong_shares" and error.details.get("missing"):
                continue
            if error.code != "wrong_shares" or not shares[-1] or not has_terminal():
                raise
            # Asked for again, because twenty words are easily mistyped.
            click.echo(f"connmgr: {visible(error.message)}", err=True)
            shares.pop()
    client.vault.recover(shares, ask_passphrase(f"New passphrase of {key.user}", confirm=True))
    click.echo(
        f"{key.user} has a new passphrase. The words of recovery key {key.recovery} are valid still: "
        f"`connmgr vault recovery rotate {key.recovery}` makes others.",
        err=True,
    )


@recovery.command(name="rotate")
@click.argument("key", metavar="ID")
@json_option
def rotate_recovery(key: str, *, as_json: bool) -> None:
    """Replace a recovery key by a new one.

    It has as many shares; the old words open nothing any more. It asks for the passphrase of its user.
    """
    client = connect()
    of = next((other.user for other in client.vault.recoveries() if other.recovery == key), "its user")
    _print_words(client.vault.rotate_recovery(key, ask_passphrase(f"Passphrase of {of}")), as_json=as_json)


@recovery.command(name="revoke")
@click.argument("key", metavar="ID")
def revoke_recovery(key: str) -> None:
    """Remove a recovery key. A user must be unlocked."""
    connect().vault.revoke_recovery(key)


def _print_words(words: RecoveryWordsResponse, *, as_json: bool) -> None:
    """Print the words of a new recovery key, which nothing keeps.

    :raises Failure: they cannot be written, as on a full disk; it says how to get others.
    """
    try:
        if as_json:
            print_json(words)
            return
        for share in words.shares:
            click.echo(share)
    except OSError as error:
        raise Failure(
            f"{io_failure(error).message} The words of recovery key {words.recovery} are lost: "
            f"`connmgr vault recovery rotate {words.recovery}` makes others."
        ) from error
    all = "the whole key" if words.threshold == 1 else f"any {words.threshold} of them are the key"
    click.echo(
        f"Recovery key {words.recovery} of {words.user} has {plural(len(words.shares), 'share')}; {all}. These words "
        "are shown once: write them down, and keep shares apart from each other and from this machine.",
        err=True,
    )


_KEY_NOT_INCLUDED = "The vault's key is not part of it, and no secret can be read without it: keep a copy elsewhere."


@vault.command()
@click.argument("file", type=click.Path(path_type=Path))
@json_option
@setting_options("data_dir", "database_url")
def backup(file: Path, *, as_json: bool, **flags: Any) -> None:
    """Write the vault into the new FILE, which only you can read. Daemons on the vault keep running.

    FILE has connections, users, tokens, saved commands, approvals and jobs, and the files that connection types keep in
    the data directory, such as known_hosts. It does not have the vault's key; the output lists what else is left out.
    """
    settings = read_settings(flags)
    from connmgr.errors import StartupError
    from connmgr.vault.backup import backup as write

    nothing = StartupError(
        "No vault found, so there is nothing to back up. Name the daemon's directory with --data-dir, or its database "
        "with --database-url."
    )
    if not settings.database_url and not (settings.data_dir / "vault.db").exists():
        raise nothing
    with open_vault_database(settings) as database:
        if database.empty:
            raise nothing
        database.prepare()
        contents = write(database, file, settings.data_dir)
    if as_json:
        print_json(_as_json(contents))
        return
    click.echo(f"The vault is in {visible(str(file))}: {_contents_text(contents)}.\n{_KEY_NOT_INCLUDED}")
    _tell_left_out(contents)


@vault.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
@setting_options("data_dir", "database_url")
def restore(file: Path, *, as_json: bool, **flags: Any) -> None:
    """Restore the vault from the backup FILE.

    The data directory, or the PostgreSQL database, must be empty. Then put the vault's key into the data directory,
    before you start a daemon.
    """
    settings = read_settings(flags)
    from connmgr.processes import harden
    from connmgr.vault import backup as copies

    harden()
    if settings.database_url:
        with open_vault_database(settings) as database:
            contents = copies.restore_into(file, database, settings.data_dir)
    else:
        _, contents = copies.restore(file, settings.data_dir)
    if as_json:
        print_json(_as_json(contents))
        return
    origin = f", as of {contents.created}, by connmgr {contents.version}" if contents.created else ""
    click.echo(f"The vault is restored{origin}: {_contents_text(contents)}.")
    if not contents.format:
        click.echo("This backup is of an older format without files: trust the hosts again with `connmgr trust`.")
    click.echo(f"Put its key, vault.key, into {settings.data_dir} before you start a daemon.")
    _tell_left_out(contents)


def _contents_text(contents: Contents) -> str:
    rows = [
        f"{number} {_singular(what) if number == 1 else what}" for what, number in contents.numbers.items() if number
    ]
    return ", ".join(
        [
            *rows,
            *(f"{visible(name)} ({plural(len(text.splitlines()), 'line')})" for name, text in contents.files.items()),
        ]
    )


def _singular(plural: str) -> str:
    return plural[:-3] + "y" if plural.endswith("ies") else plural.removesuffix("s")


def _tell_left_out(contents: Contents) -> None:
    rows = [
        (part.name, plural(len(part.files), "file"), f"{part.size:,} bytes", part.reason) for part in contents.left_out
    ]
    if rows:
        click.echo("\nNot part of it are:")
        print_table(rows, indent="  ")
    others = "config.toml, and files that connections name: keys, ~/.ssh/config, ~/.ssh/known_hosts."
    click.echo(f"Nor are {others}" if rows else f"Not part of it are {others}")


def _as_json(contents: Contents) -> dict[str, Any]:
    return {
        "format": contents.format,
        "created": contents.created,
        "version": contents.version,
        "numbers": contents.numbers,
        "files": {name: len(content) for name, content in contents.files.items()},
        "leftOut": [{"name": part.name, "reason": part.reason, "files": part.files} for part in contents.left_out],
    }


@vault.command(name="move-key")
@click.argument("to", type=click.Choice(KEY_STORES))
@setting_options("data_dir", "database_url", "key_store")
def move_key(to: str, **flags: Any) -> None:
    """Move the vault's key to another store, while no daemon runs.

    It comes from where --key-store says, and goes where TO says: a file, systemd-creds or the system's keyring. Say so
    in the settings afterwards. If it is interrupted, the key is in both.
    """
    settings = read_settings(flags)
    from connmgr.daemon.files import key_store, private_directory
    from connmgr.errors import StartupError
    from connmgr.secrets.vault_key import move
    from connmgr.vault import VaultLock

    if to == settings.key_store:
        raise click.UsageError(f"The key is in {to} already, as --key-store says: name another store.")
    private_directory(settings.data_dir, "data directory")
    # The lock first: a daemon that started meanwhile would read the key where it is no longer.
    with VaultLock(settings.data_dir / "lock"), open_vault_database(settings) as database:
        verifier = database.key_verifier
        if verifier is None:
            raise StartupError("No key to move: there is no vault yet.")
        move(key_store(settings), key_store(settings, to), verifier)
    click.echo(f'The vault\'s key has moved. Set `key-store = "{to}"` in the settings, as `connmgr serve --help` says.')


@vault.command(name="rotate-key")
@setting_options("data_dir", "database_url", "key_store")
def rotate_key(**flags: Any) -> None:
    """Replace the vault's key, while no daemon runs on the vault.

    Secrets and passphrases stay as they are. If it is interrupted, the next start finds the right key. Daemons that
    share the vault's database must be stopped, and need a copy of the new key.
    """
    settings = read_settings(flags)
    from connmgr.daemon.files import key_store, private_directory
    from connmgr.errors import StartupError
    from connmgr.vault import VaultLock
    from connmgr.vault.integrity import rotate

    private_directory(settings.data_dir, "data directory")
    with VaultLock(settings.data_dir / "lock"), open_vault_database(settings) as database:
        if database.empty:
            raise StartupError("No key to replace: there is no vault yet.")
        rotate(database, key_store(settings))
    click.echo("The vault has a new key.")
