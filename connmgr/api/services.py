"""The services that the endpoints use; the daemon creates them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import flask

from connmgr.api.auth import Caller, Credentials, Scraper, Tokens
from connmgr.api.counts import Counts
from connmgr.api.slots import RequestSlots
from connmgr.api.tickets import Tickets
from connmgr.audit.entry import SubjectNames
from connmgr.audit.log import AuditLog
from connmgr.fs.bodies import Blobs
from connmgr.jobs.jobs import Jobs
from connmgr.jobs.reaper import OrphanJobs
from connmgr.links.table import IdleLinks, LinkTable
from connmgr.pipes.streams import Streams
from connmgr.registry import Registry
from connmgr.rights.approvals import Approvals
from connmgr.rights.authorisation import Authorisation
from connmgr.rights.grants import Grants
from connmgr.rights.saved_commands import SavedCommands
from connmgr.secrets.loans import Loans
from connmgr.settings import Settings
from connmgr.shares import Computing, Pace
from connmgr.shell.shells import ShellTable
from connmgr.terminals.terminals import Terminals
from connmgr.tunnels.table import Tunnels
from connmgr.vault import Vault

EXTENSION = "connmgr"


@dataclass(frozen=True)
class Services:
    """The services of the endpoints. ``anonymous`` is the caller of all requests while ``no-auth`` is set."""

    settings: Settings
    vault: Vault
    registry: Registry
    links: LinkTable
    kept: IdleLinks
    shells: ShellTable
    streams: Streams
    terminals: Terminals
    tunnels: Tunnels
    jobs: Jobs
    orphans: OrphanJobs
    authorisation: Authorisation
    approvals: Approvals
    commands: SavedCommands
    credentials: Credentials
    grants: Grants
    loans: Loans
    tokens: Tokens
    tickets: Tickets
    scraper: Scraper
    anonymous: Caller
    slots: RequestSlots
    pace: Pace
    computing: Computing
    upgrades: Pace
    """The pace at which a token's requests become streams."""

    blobs: Blobs
    audit: AuditLog
    subject_names: SubjectNames
    counts: Counts
    stopping: Callable[[], bool]
    stop: Callable[[], None]


def services() -> Services:
    """Return the services of the application that answers this request."""
    found: Services = flask.current_app.extensions[EXTENSION]
    return found
