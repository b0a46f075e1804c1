"""Creates the services that the endpoints use, and connects them."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path

from connmgr.api.account import holder, turns
from connmgr.api.auth import Caller, Credentials, Scraper, Tokens
from connmgr.api.counts import Counts
from connmgr.api.services import Services
from connmgr.api.slots import RequestSlots
from connmgr.api.tickets import Tickets
from connmgr.audit.entry import CommandText, SubjectNames
from connmgr.audit.log import FILE_NAME, AuditLog, open_chain
from connmgr.daemon import apikey, metrics_token
from connmgr.daemon.authfile import AuthFile
from connmgr.daemon.ending import Ending
from connmgr.daemon.stop import CLOSE_SECONDS, Stop
from connmgr.errors import StartupError, UnknownJob
from connmgr.fs.bodies import Blobs
from connmgr.jobs.jobs import JobLimits, Jobs
from connmgr.jobs.reaper import OrphanJobs, Reaper
from connmgr.jobs.remote import RemoteHosts
from connmgr.links.chain import ConnectionSecrets
from connmgr.links.table import IdleLinks, LinkTable
from connmgr.pipes.streams import Streams
from connmgr.registry import Registry
from connmgr.rights.approvals import Approvals
from connmgr.rights.authorisation import Authorisation
from connmgr.rights.grants import Grants
from connmgr.rights.saved_commands import SavedCommands
from connmgr.rights.subjects import SubjectsOf, Work
from connmgr.secrets.loans import Loans
from connmgr.secrets.principals import Access
from connmgr.settings import TOKEN_TEXT, Settings
from connmgr.shares import Computing, Pace
from connmgr.shell.grounds import Grounds
from connmgr.shell.shells import ShellTable
from connmgr.terminals.recording import Recordings
from connmgr.terminals.terminals import TerminalLimits, Terminals
from connmgr.tunnels.table import Tunnels
from connmgr.vault import Vault

logger = logging.getLogger("connmgr.daemon")


def open_services(
    settings: Settings, vault: Vault, registry: Registry, auth_file: AuthFile, stop: Stop, cleanup: contextlib.ExitStack
) -> Services:
    """Return the services of the endpoints; ``cleanup`` closes them, each before the services that it uses.

    :raises StartupError: the files of one of them cannot be used.
    """
    links, slots = LinkTable(vault, registry, settings.send_env), RequestSlots(settings.threads)
    # First, and so closed last: it records the ends of processes that the others end.
    names = SubjectNames(vault)
    audit = _open_audit(settings, vault, registry, names, cleanup)
    shells = _open_shells(settings, vault, registry, links, cleanup)
    streams = Streams()
    cleanup.callback(streams.close, CLOSE_SECONDS)
    terminals = _open_terminals(settings, vault, links, streams, cleanup)
    tunnels = Tunnels(vault, registry, links, settings.start_timeout)
    cleanup.callback(tunnels.close, CLOSE_SECONDS)
    kept = IdleLinks()
    cleanup.callback(kept.let_go, 0.0)
    reach = RemoteHosts(links, kept)
    limits = JobLimits(settings.max_connection_jobs, settings.max_jobs)
    jobs = _open_jobs(vault, reach, limits, kept, slots, cleanup)
    blobs = Blobs(settings.data_dir / "spool", quota=settings.blob_quota, ttl=settings.blob_ttl)
    cleanup.callback(blobs.close)
    loans = Loans()
    ending = Ending(vault, streams, terminals, tunnels, jobs, loans, audit)
    loans.ended, loans.ended_since, loans.used = ending.loan_over, ending.end_borrowed, ending.loan_used
    cleanup.callback(loans.close)
    grants = _open_grants(vault, ending, cleanup)
    approvals = _open_approvals(vault, registry, cleanup)
    anonymous = Caller("anonymous", Access(), time.monotonic())
    return Services(
        settings=settings,
        vault=vault,
        registry=registry,
        links=links,
        kept=kept,
        shells=shells,
        streams=streams,
        terminals=terminals,
        tunnels=tunnels,
        jobs=jobs,
        orphans=OrphanJobs(vault, reach, jobs),
        authorisation=_authorisation(vault, registry, approvals, jobs, terminals, Grounds(vault, registry, shells)),
        approvals=approvals,
        commands=SavedCommands(vault.commands),
        grants=grants,
        loans=loans,
        credentials=Credentials(lambda: auth_file.content, lambda: _api_key(settings.data_dir)),
        tokens=_open_tokens(settings, anonymous, grants, loans, cleanup),
        tickets=Tickets(),
        scraper=Scraper(lambda: _metrics_token(settings)),
        anonymous=anonymous,
        slots=slots,
        pace=Pace(),
        computing=Computing(),
        upgrades=Pace(),
        blobs=blobs,
        audit=audit,
        subject_names=names,
        counts=Counts(),
        stopping=lambda: stop.requested,
        stop=stop.request,
    )


def _open_shells(
    settings: Settings, vault: Vault, registry: Registry, links: LinkTable, cleanup: contextlib.ExitStack
) -> ShellTable:
    shells = ShellTable(
        vault,
        registry,
        links,
        max_output=settings.max_output,
        idle_timeout=settings.idle_timeout,
        start_timeout=settings.start_timeout,
        orphans=settings.data_dir / "shells.json",
    )
    cleanup.callback(shells.close, CLOSE_SECONDS)
    return shells


def _open_terminals(
    settings: Settings, vault: Vault, links: LinkTable, streams: Streams, cleanup: contextlib.ExitStack
) -> Terminals:
    recordings = Recordings(
        settings.data_dir / "recordings", limit=settings.max_recording, days=settings.recording_days
    )
    limits = TerminalLimits(settings.max_connection_terminals, settings.max_terminals, settings.terminal_timeout)
    terminals = Terminals(vault, links, streams, recordings, limits, settings.start_timeout)
    cleanup.callback(terminals.close, CLOSE_SECONDS)
    return terminals


def _open_jobs(
    vault: Vault,
    reach: RemoteHosts,
    limits: JobLimits,
    kept: IdleLinks,
    slots: RequestSlots,
    cleanup: contextlib.ExitStack,
) -> Jobs:
    jobs = Jobs(vault, reach, limits, lambda: slots.taken(holder()))
    cleanup.callback(jobs.close, CLOSE_SECONDS)
    keeper = Reaper(vault, jobs, reach, kept)
    cleanup.callback(keeper.close, CLOSE_SECONDS)
    return jobs


def _open_audit(
    settings: Settings, vault: Vault, registry: Registry, names: SubjectNames, cleanup: contextlib.ExitStack
) -> AuditLog:
    audit = AuditLog(
        settings.data_dir / FILE_NAME,
        *open_chain(vault.principals, vault.database),
        vault.audit_mac,
        text=CommandText(
            tokens=settings.audit_token_commands == TOKEN_TEXT,
            everyone=settings.audit_commands,
            secrets=ConnectionSecrets(vault, registry).of,
        ),
        names=names.of,
        ship=registry.plugins.hook.connmgr_audit,
    )
    cleanup.callback(audit.close)
    return audit


def _open_grants(vault: Vault, ending: Ending, cleanup: contextlib.ExitStack) -> Grants:
    grants = Grants(vault.tokens, vault.principals.lasting_key(b"connmgr.tokens"), ending)
    cleanup.callback(grants.in_use.close)
    return grants


def _open_tokens(
    settings: Settings, anonymous: Caller, grants: Grants, loans: Loans, cleanup: contextlib.ExitStack
) -> Tokens:
    tokens = Tokens(settings.session_ttl, settings.unlock_ttl, anonymous, grants, loans)
    cleanup.callback(tokens.close)
    tokens.watch()
    return tokens


def _open_approvals(vault: Vault, registry: Registry, cleanup: contextlib.ExitStack) -> Approvals:
    key, requested = vault.principals.lasting_key(b"connmgr.approval"), registry.plugins.hook.connmgr_approval_requested
    approvals = Approvals(vault.approvals, key, turns, lambda shown: requested(approval=shown))
    cleanup.callback(approvals.waiters.close)
    return approvals


def _authorisation(
    vault: Vault, registry: Registry, approvals: Approvals, jobs: Jobs, terminals: Terminals, grounds: Grounds
) -> Authorisation:
    def job(id: str) -> Work | None:
        try:
            stored = jobs.find(id).stored
        except UnknownJob:
            return None
        return Work(stored.connection, stored.token)

    def terminal(id: str) -> Work | None:
        origin = terminals.origin_of(id)
        return None if origin is None else Work(origin.connection, origin.token)

    subjects = SubjectsOf(registry, vault, {"job": job, "terminal": terminal})
    return Authorisation(registry, vault, subjects, approvals, grounds.of)


def _metrics_token(settings: Settings) -> str | None:
    try:
        return metrics_token.read(settings.metrics_token_file) if settings.metrics_token_file else None
    except StartupError as error:
        logger.warning("The metrics token is not accepted. %s", error.message)
        return None


def _api_key(data_dir: Path) -> str | None:
    try:
        return apikey.read(data_dir)
    except StartupError as error:
        logger.warning("The API key is not accepted. %s", error.message)
        return None
