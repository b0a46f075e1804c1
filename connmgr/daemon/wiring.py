"""Creates the services that the endpoints use, and connects them."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from connmgr.api.auth import Caller, Credentials, Scraper, Tickets, Tokens
from connmgr.api.context import continuation, holder
from connmgr.api.listeners import Listeners, Lookout
from connmgr.api.record import ENDED, REQUIRED
from connmgr.api.services import Counts, RequestSlots, Services
from connmgr.audit.entry import CommandText, SubjectNames
from connmgr.audit.log import FILE_NAME, AuditLog, open_chain
from connmgr.daemon.ending import Ending
from connmgr.daemon.files import AuthFile, read_api_key, read_metrics_token, replace_private
from connmgr.daemon.process import CLOSE_SECONDS, Stop
from connmgr.errors import ConnmgrError, StartupError, UnknownJob
from connmgr.events import Events
from connmgr.facts.gathering import Gatherer
from connmgr.fs.bodies import Blobs
from connmgr.inventories.inventories import Inventories
from connmgr.jobs.jobs import JobLimits, Jobs
from connmgr.jobs.reaper import OrphanJobs, Reaper
from connmgr.jobs.remote import RemoteHosts
from connmgr.links.chain import ConnectionSecrets, leads_to_host
from connmgr.links.table import IdleLinks, LinkTable
from connmgr.multiplex.config import KeptConfig, SshConfigs
from connmgr.multiplex.sockets import ControlSockets
from connmgr.paths import config_file
from connmgr.pipes.streams import Streams
from connmgr.registry import Registry
from connmgr.rights.approvals import Approvals
from connmgr.rights.authorisation import Authorisation, Work
from connmgr.rights.saved_commands import SavedCommands
from connmgr.rights.tokens import Grants
from connmgr.runs.author import Author, Authors
from connmgr.runs.runs import Runs
from connmgr.schedules.notices import Notices
from connmgr.schedules.schedules import Schedules
from connmgr.secrets.loans import Loans
from connmgr.secrets.principals import Access
from connmgr.settings import TOKEN_TEXT, Settings
from connmgr.shares import Computing, Pace, Queues
from connmgr.shell.commands import Grounds
from connmgr.shell.shells import ShellTable
from connmgr.signers import Signers
from connmgr.terminals.recording import Recordings
from connmgr.terminals.terminals import TerminalLimits, Terminals
from connmgr.tunnels.table import Tunnels
from connmgr.undo.snapshots import Snapshots
from connmgr.undo.store import ChangeStore
from connmgr.vault import Vault
from connmgr.vault.jobs import StoredJob
from connmgr.vault.runs import StoredRun, TargetOutcome

logger = logging.getLogger("connmgr.daemon")

RUN_TARGETS = "run targets ended"
"""The event of entries of the audit log about what a run did without a request."""


def open_services(
    settings: Settings, vault: Vault, registry: Registry, auth_file: AuthFile, stop: Stop, cleanup: contextlib.ExitStack
) -> Services:
    """Return the services of the endpoints; ``cleanup`` closes them, each before the services that it uses.

    :raises StartupError: the files of one of them cannot be used.
    """
    events, slots = Events(), RequestSlots(settings.threads)
    # First, and so closed last: it records the ends of processes that the others end.
    names = SubjectNames(vault)
    audit = _open_audit(settings, vault, registry, names, cleanup)
    signers = Signers(vault, registry, audit.note, must_note=settings.audit == REQUIRED)
    links = LinkTable(vault, registry, settings.send_env, events.publish, signers)
    shells = _open_shells(settings, vault, registry, links, events, cleanup)
    computing, pace = Computing(), Pace()
    streams = Streams(computing, pace)
    cleanup.callback(streams.close, CLOSE_SECONDS)
    terminals = _open_terminals(settings, vault, links, streams, events, cleanup)
    tunnels = Tunnels(vault, registry, links, settings.start_timeout, events.publish)
    cleanup.callback(tunnels.close, CLOSE_SECONDS)
    sockets = ControlSockets(streams.loop, tunnels, settings.auth_file.with_name("ssh"), str(settings.auth_file))
    cleanup.callback(sockets.stop)
    ssh_configs = SshConfigs(vault, registry)
    kept_config = _open_kept_config(settings, vault, ssh_configs, sockets, cleanup)
    idle_links = IdleLinks()
    cleanup.callback(idle_links.let_go, 0.0)
    reach = RemoteHosts(links, idle_links)
    limits = JobLimits(settings.max_connection_jobs, settings.max_jobs)
    jobs = _open_jobs(vault, reach, limits, idle_links, slots, audit, events, cleanup)
    blobs = Blobs(settings.data_dir / "spool", quota=settings.blob_quota, ttl=settings.blob_ttl)
    cleanup.callback(blobs.close)
    loans = Loans()
    ending = Ending(vault, streams, terminals, tunnels, sockets, jobs, loans, audit)
    loans.ended, loans.ended_since, loans.used = ending.loan_over, ending.end_borrowed, ending.loan_used
    cleanup.callback(loans.close)
    grants = _open_grants(vault, ending, events, cleanup)
    approvals = _open_approvals(vault, registry, events, cleanup)
    grounds = Grounds(vault, registry, shells)
    commands = SavedCommands(vault.commands)
    authorisation = _authorisation(vault, registry, approvals, jobs, terminals, grounds)
    authors = Authors(grants, authorisation, commands)
    facts = Gatherer(vault, links, registry.plugins.hook.connmgr_fact_programs)
    away = partial(leads_to_host, vault, registry)
    runs = Runs(vault, shells, jobs, facts, authors, settings, partial(_record_run, audit), away, events.publish)
    ending.runs = runs
    cleanup.callback(runs.close, CLOSE_SECONDS)
    notices = Notices(registry.plugins.hook.connmgr_run_ended)
    cleanup.callback(notices.close, CLOSE_SECONDS)
    schedules = Schedules(vault, notices, events.publish)
    cleanup.callback(schedules.close, CLOSE_SECONDS)
    runs.changed = schedules.poke
    inventories = Inventories(vault, runs.name)
    cleanup.callback(inventories.close, CLOSE_SECONDS)
    anonymous = Caller("anonymous", Access(), time.monotonic())
    lookout = Lookout(links, shells, jobs, vault.jobs, terminals, authorisation, events.publish)
    return Services(
        settings=settings,
        vault=vault,
        registry=registry,
        links=links,
        signers=signers,
        idle_links=idle_links,
        shells=shells,
        streams=streams,
        terminals=terminals,
        tunnels=tunnels,
        sockets=sockets,
        ssh_configs=ssh_configs,
        kept_config=kept_config,
        facts=facts,
        jobs=jobs,
        runs=runs,
        schedules=schedules,
        inventories=inventories,
        orphans=OrphanJobs(vault, reach, jobs),
        authorisation=authorisation,
        approvals=approvals,
        commands=commands,
        grants=grants,
        loans=loans,
        credentials=Credentials(lambda: auth_file.content, lambda: _api_key(settings.data_dir)),
        tokens=_open_tokens(settings, anonymous, grants, loans, streams, cleanup),
        tickets=Tickets(),
        listeners=Listeners(events, streams, authorisation, lookout.look),
        events=events,
        scraper=Scraper(lambda: _metrics_token(settings)),
        anonymous=anonymous,
        slots=slots,
        pace=pace,
        computing=computing,
        snapshots=Snapshots(),
        changes=ChangeStore(
            settings.data_dir / "undo",
            lambda: vault.principals.lasting_key(b"connmgr.undo"),
            total=settings.max_undo,
            days=settings.undo_days,
        ),
        upgrades=Pace(),
        scans=Queues(),
        blobs=blobs,
        audit=audit,
        subject_names=names,
        counts=Counts(),
        stopping=lambda: stop.requested,
        stop=stop.request,
    )


def _open_shells(
    settings: Settings,
    vault: Vault,
    registry: Registry,
    links: LinkTable,
    events: Events,
    cleanup: contextlib.ExitStack,
) -> ShellTable:
    shells = ShellTable(
        vault,
        registry,
        links,
        max_output=settings.max_output,
        idle_timeout=settings.idle_timeout,
        start_timeout=settings.start_timeout,
        orphans=settings.data_dir / "shells.json",
        publish=events.publish,
    )
    cleanup.callback(shells.close, CLOSE_SECONDS)
    return shells


def _open_kept_config(
    settings: Settings, vault: Vault, configs: SshConfigs, sockets: ControlSockets, cleanup: contextlib.ExitStack
) -> KeptConfig:
    file = config_file(os.environ).with_name("ssh_config")
    sender = Caller("connmgr ssh-config", Access(), time.monotonic())
    kept = KeptConfig(vault, configs, sockets, file, settings.data_dir, sender, replace_private)
    cleanup.callback(kept.close)
    return kept


def _open_terminals(
    settings: Settings,
    vault: Vault,
    links: LinkTable,
    streams: Streams,
    events: Events,
    cleanup: contextlib.ExitStack,
) -> Terminals:
    recordings = Recordings(
        settings.data_dir / "recordings",
        limit=settings.max_recording,
        total=settings.max_recordings,
        days=settings.recording_days,
    )
    limits = TerminalLimits(settings.max_connection_terminals, settings.max_terminals, settings.terminal_timeout)
    terminals = Terminals(vault, links, streams, recordings, limits, settings.start_timeout, events.publish)
    cleanup.callback(terminals.close, CLOSE_SECONDS)
    return terminals


def _open_jobs(
    vault: Vault,
    reach: RemoteHosts,
    limits: JobLimits,
    idle_links: IdleLinks,
    slots: RequestSlots,
    audit: AuditLog,
    events: Events,
    cleanup: contextlib.ExitStack,
) -> Jobs:
    jobs = Jobs(vault, reach, limits, lambda: slots.taken(holder()), events.publish)
    cleanup.callback(jobs.close, CLOSE_SECONDS)
    reaper = Reaper(vault, jobs, reach, idle_links, partial(_record_end, vault, audit))
    cleanup.callback(reaper.close, CLOSE_SECONDS)
    return jobs


def _record_end(vault: Vault, audit: AuditLog, job: StoredJob) -> None:
    """Record the end of a job in the audit log; the entry of the request that started it has the job's id, too."""
    facts = {"event": ENDED, "connection": job.connection}
    if job.token is not None:
        facts["token"] = job.token
        # Without the database the entry has the token's id alone.
        with contextlib.suppress(ConnmgrError):
            if (token := vault.tokens.get(job.token)) is not None:
                facts["tokenName"] = token.body["name"]
    outcome = {} if job.exit_code is None else {"exitCode": job.exit_code}
    audit.record(facts, {}, {"job": job.id, "state": job.state, **outcome})


def _record_run(audit: AuditLog, run: StoredRun, author: Author, outcomes: Sequence[tuple[str, TargetOutcome]]) -> None:
    """Record the ends of some targets of a run, which were stored together; the entry of its start has its id, too."""
    facts = {"event": RUN_TARGETS, "client": author.name}
    if author.grant is not None:
        facts |= {"token": author.grant.id, "tokenName": author.grant.name}
    about = {"connections": [connection for connection, _ in outcomes]}
    ends = [one for _, one in outcomes]
    states, codes = [end.state for end in ends], [end.exit_code for end in ends]
    audit.record(facts, about, {"run": run.id, "states": states, "exitCodes": codes})


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


def _open_grants(vault: Vault, ending: Ending, events: Events, cleanup: contextlib.ExitStack) -> Grants:
    grants = Grants(vault.tokens, vault.principals.lasting_key(b"connmgr.tokens"), ending, events.publish)
    cleanup.callback(grants.in_use.close)
    return grants


def _open_tokens(
    settings: Settings, anonymous: Caller, grants: Grants, loans: Loans, streams: Streams, cleanup: contextlib.ExitStack
) -> Tokens:
    tokens = Tokens(
        settings.session_ttl,
        settings.unlock_ttl,
        anonymous,
        grants,
        loans,
        page_ttl=settings.web_ttl,
        left=lambda page, why: streams.end_session(page.id, why),
    )
    cleanup.callback(tokens.close)
    tokens.watch()
    return tokens


def _open_approvals(vault: Vault, registry: Registry, events: Events, cleanup: contextlib.ExitStack) -> Approvals:
    key, requested = vault.principals.lasting_key(b"connmgr.approval"), registry.plugins.hook.connmgr_approval_requested
    approvals = Approvals(vault.approvals, key, continuation, lambda shown: requested(approval=shown), events.publish)
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

    return Authorisation(registry, vault, job, terminal, approvals, grounds.of)


def _metrics_token(settings: Settings) -> str | None:
    try:
        return read_metrics_token(settings.metrics_token_file) if settings.metrics_token_file else None
    except StartupError as error:
        logger.warning("The metrics token is not accepted. %s", error.message)
        return None


def _api_key(data_dir: Path) -> str | None:
    try:
        return read_api_key(data_dir)
    except StartupError as error:
        logger.warning("The API key is not accepted. %s", error.message)
        return None
