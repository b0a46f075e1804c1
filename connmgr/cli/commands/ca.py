"""``connmgr ca``: signers of SSH certificates."""

from __future__ import annotations

import base64
import json
import sys
from typing import IO, TYPE_CHECKING, Any

import click

from connmgr.cli.connect import connect
from connmgr.cli.options import Group
from connmgr.cli.output import Duration, json_option, lasting, print_json, print_table
from connmgr.cli.selection import find_category
from connmgr.client import Client
from connmgr.contract.ca import LEAST_HOST_SECONDS
from connmgr.printable import visible

if TYPE_CHECKING:
    from connmgr.contract.ca import CaInfo

PRINCIPALS = click.option(
    "--principals", metavar="NAME,...", help="The names that certificates may have.  [default: the user who logs in]"
)
VALID = click.option(
    "--valid", metavar="TIME", type=Duration(least=30), help="How long a certificate may be used to log in, such as 5m."
)
RENEW = click.option(
    "--renew",
    metavar="yes|no",
    type=bool,
    help="Once the certificate of an open link has expired, log in anew for what begins then.  [default: no]",
)


@click.group(cls=Group)
def ca() -> None:
    """Log in by short-lived SSH certificates.

    A connection with identity.certificate.signer=NAME gets a key and a certificate for each login, and keeps neither.
    """


@ca.command(name="init")
@click.argument("name")
@click.option("--from", "source", metavar="FILE", type=click.File(), help="JSON of another signer; - is stdin.")
@click.option(
    "--authority", metavar="FILE", type=click.File(), help="The public key of a signer whose key is elsewhere."
)
@PRINCIPALS
@VALID
@RENEW
def init(
    name: str,
    source: IO[str] | None,
    authority: IO[str] | None,
    principals: str | None,
    valid: float | None,
    *,
    renew: bool | None,
) -> None:
    """Make an authority, and print the line by which sshd trusts it.

    Its key is in the vault and never leaves it. With --from the key is elsewhere: {"type": "vault", "address": ...,
    "role": ...}, {"type": "step-ca", ...} or {"type": "command", "argv": ["ssh-keygen", "-s", ...]}. Secrets of the
    file are stored encrypted.
    """
    authorities = connect().ca.init(
        name,
        None if source is None else _read(source),
        authority=None if authority is None else authority.read().strip(),
        principals=_words(principals),
        seconds=None if valid is None else int(valid),
        renew=renew,
    )
    for line in authorities:
        click.echo(f"{line} connmgr-{name}")


def _read(source: IO[str]) -> dict[str, Any]:
    try:
        data = json.load(source)
    except ValueError as error:
        raise click.UsageError(f"--from: not JSON: {error}") from error
    if not isinstance(data, dict):
        raise click.UsageError("--from: not an object of JSON.")
    return data


def _words(principals: str | None) -> list[str] | None:
    return None if principals is None else [word.strip() for word in principals.split(",")]


@ca.command(name="ls")
@json_option
def list_signers(*, as_json: bool) -> None:
    """List signers: type, limits, revoked certificates."""
    client = connect()
    signers = client.ca.query()
    if as_json:
        print_json(signers)
    else:
        print_table([row for signer in signers for row in _rows(client, signer)])


def _rows(client: Client, signer: CaInfo) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for limit in signer.limits:
        where = "all" if limit.category is None else _path(client, limit.category)
        names = "user" if limit.principals is None else visible(",".join(limit.principals))
        lives = lasting(limit.seconds or signer.limits[0].seconds or 300)
        renews = signer.limits[0].renew if limit.renew is None else limit.renew
        rows.append((signer.name, signer.type, where, names, f"{lives}, then anew" if renews else lives))
    state = [*(["rotating"] if signer.rotating else []), *([f"{signer.revoked} revoked"] if signer.revoked else [])]
    # The state is the signer's, and stands in the first row, that of its general limit.
    rows[0] = (*rows[0], ", ".join(state) or "-")
    return [rows[0], *((*row, "") for row in rows[1:])]


def _path(client: Client, category: str) -> str:
    from connmgr.client import ClientError

    try:
        return visible("/".join(client.category.info([category])[0].name[1:]) or "/")
    except ClientError:
        return f"{category} (removed)"


@ca.command(name="trust")
@click.argument("name")
@click.option("--revoked", is_flag=True, help="Print the revoked certificates instead, for RevokedKeys.")
@click.option(
    "--hosts", metavar="PATTERN", help="Print the lines for known_hosts instead, for hosts such as *.example."
)
def trust(name: str, hosts: str | None, *, revoked: bool) -> None:
    """Print the line for the file that TrustedUserCAKeys of sshd_config names.

    With --hosts it is the line by which clients trust the certificates that connmgr ca host makes for hosts.
    """
    # In known_hosts a blank ends the patterns, so that the rest would be read as the key.
    if hosts is not None and (revoked or not hosts or any(character.isspace() for character in hosts)):
        raise click.UsageError("--hosts takes one argument, names and patterns joined by commas, without --revoked.")
    answer = connect().ca.trust(name)
    if revoked:
        sys.stdout.buffer.write(base64.b64decode(answer.revoked))
        return
    if not answer.lines:
        raise click.ClickException(f"No public key of {name} is known: ask whoever keeps the signer.")
    mark = "" if hosts is None else f"@cert-authority {hosts} "
    click.echo("\n".join(f"{mark}{line}" for line in answer.lines))


@ca.command(name="host")
@click.argument("name")
@click.argument("key", type=click.File())
@click.option("--names", metavar="NAME,...", required=True, help="The names and addresses by which clients reach it.")
@click.option(
    "--valid",
    metavar="TIME",
    type=Duration(least=LEAST_HOST_SECONDS),
    default="90d",
    show_default=True,
    help="How long it is valid.",
)
def host(name: str, key: IO[str], names: str, valid: float) -> None:
    """Certify the key of a host, and print the certificate.

    KEY is the host's public key, such as /etc/ssh/ssh_host_ed25519_key.pub; - is stdin. Put what is printed into the
    file on the host that HostCertificate of its sshd_config names.
    """
    answer = connect().ca.host(name, key.read().strip(), _words(names) or [], seconds=int(valid))
    click.echo(answer.certificate)


@ca.command(name="limit")
@click.argument("name")
@click.option("--category", metavar="PATH", help="For connections in this category and below it.  [default: for all]")
@PRINCIPALS
@VALID
@RENEW
@click.option("--remove", is_flag=True, help="Remove the limit.")
def limit(
    name: str,
    category: str | None,
    principals: str | None,
    valid: float | None,
    *,
    renew: bool | None,
    remove: bool,
) -> None:
    """Say which names certificates may have, and for how long.

    The nearest category upwards decides. A login as one of the names gets that name alone; another login gets all of
    them, for hosts that map names to users (AuthorizedPrincipalsFile).
    """
    client = connect()
    client.ca.limit(
        name,
        category=None if category is None else find_category(client, category),
        principals=_words(principals),
        seconds=None if valid is None else int(valid),
        renew=renew,
        remove=remove,
    )


@ca.command(name="rotate")
@click.argument("name")
@click.option("--finish", is_flag=True, help="Sign by the new key from now on, and drop the old one.")
def rotate(name: str, *, finish: bool) -> None:
    """Replace an authority's key: first make the new one, then, when hosts trust both, --finish.

    It prints the lines for the hosts after each step.
    """
    click.echo("\n".join(connect().ca.rotate(name, finish=finish).lines))


@ca.command(name="revoke")
@click.argument("name")
@click.argument("certificates", metavar="SERIAL|KEYID...", nargs=-1, required=True)
def revoke(name: str, certificates: tuple[str, ...]) -> None:
    """Revoke certificates; `connmgr ca trust NAME --revoked` has the list for the hosts.

    sshd's log and the audit log have the serial number and the key id of each login.
    """
    connect().ca.revoke(name, certificates)


@ca.command(name="rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def remove(names: tuple[str, ...]) -> None:
    """Remove signers with their keys."""
    client = connect()
    for name in names:
        client.ca.remove(name)
