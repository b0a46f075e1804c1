"""Creates the services that the endpoints use, and connects them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from connmgr.api.auth import Caller, Credentials, Scraper, Tickets, Tokens
from connmgr.api.context import continuation, holder
from connmgr.api.listeners import Listeners, Lookout
from connmgr.api.page_files import PageFiles
from connmgr.api.record import ENDED, REQUIRED
from connmgr.api.services import Counts, LargeAnswers, RequestSlots, Services
from connmgr.audit.entry import CommandText, SubjectNames
from connmgr.audit.log import FILE_NAME, AuditLog, chain_and_anchors
from connmgr.computing import Computing, Pace
from connmgr.daemon.ending import Ending
from connmgr.daemon.files import AuthFile, read_api_key, read_metrics_token, replace_private
from connmgr.daemon.process import CLOSE_SECONDS, Stop
from connmgr.durations import boot_time
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
from connmgr.shares import OUTPUT_BYTES, SCAN_SECONDS, SCANNING, SCANS, MemoryShares, Queues
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
    wiring = _Wiring(settings, vault, registry, cleanup)
    wiring.open_audit()
    wiring.open_machines()
    wiring.open_streams()
    wiring.open_jobs()
    wiring.open_rights()
    wiring.open_runs()
    return wiring.services(auth_file, stop)


class _Wiring:
    """Creates the services by rooms, in the order in which each room needs those before it."""

    def __init__(self, settings: Settings, vault: Vault, registry: Registry, cleanup: contextlib.ExitStack) -> None:
        self.settings, self.vault, self.registry, self.cleanup = settings, vault, registry, cleanup
        self.events, self.slots = Events(), RequestSlots(settings.threads)
        self.computing, self.pace = Computing(), Pace()
        self.outputs = MemoryShares(OUTPUT_BYTES, OUTPUT_BYTES * 3 // 2)

    def open_audit(self) -> None:
        """Open the audit log: first, and so closed last, because it records the ends of processes that others end."""
        vault, settings = self.vault, self.settings
        self.names = SubjectNames(vault)
        self.audit = AuditLog(
            settings.data_dir / FILE_NAME,
            *chain_and_anchors(vault.principals, vault.database),
            vault.audit_mac,
            text=CommandText(
                tokens=settings.audit_token_commands == TOKEN_TEXT,
                everyone=settings.audit_commands,
                secrets=ConnectionSecrets(vault, self.registry).of,
            ),
            names=self.names.of,
            ship=self.registry.plugins.hook.connmgr_audit,
        )
        self.cleanup.callback(self.audit.close)

    def open_machines(self) -> None:
        """Create what reaches machines: signers, links, shells."""
        vault, registry, settings, publish = self.vault, self.registry, self.settings, self.events.publish
        self.signers = Signers(vault, registry, self.audit.note, must_note=settings.audit == REQUIRED)
        self.links = LinkTable(vault, registry, settings.send_env, publish, self.signers)
        self.shells = ShellTable(
            vault,
            registry,
            self.links,
            max_output=settings.max_output,
            idle_timeout=settings.idle_timeout,
            start_timeout=settings.start_timeout,
            orphans=settings.data_dir / "shells.json",
            publish=publish,
        )
        self.cleanup.callback(self.shells.close, CLOSE_SECONDS)

    def open_streams(self) -> None:
        """Create what moves bytes for clients: streams, terminals, tunnels, and control sockets with their file."""
        vault, settings, publish = self.vault, self.settings, self.events.publish
        self.streams = Streams(self.computing, self.pace)
        self.cleanup.callback(self.streams.close, CLOSE_SECONDS)
        recordings = Recordings(
            settings.data_dir / "recordings",
            limit=settings.max_recording,
            total=settings.max_recordings,
            days=settings.recording_days,
        )
        limits = TerminalLimits(settings.max_connection_terminals, settings.max_terminals, settings.terminal_timeout)
        self.terminals = Terminals(vault, self.links, self.streams, recordings, limits, settings.start_timeout, publish)
        self.cleanup.callback(self.terminals.close, CLOSE_SECONDS)
        self.tunnels = Tunnels(vault, self.registry, self.links, settings.start_timeout, publish)
        self.cleanup.callback(self.tunnels.close, CLOSE_SECONDS)
        directory = settings.auth_file.with_name("ssh")
        self.sockets = ControlSockets(self.streams.loop, self.tunnels, directory, str(settings.auth_file))
        self.cleanup.callback(self.sockets.stop)
        self.ssh_configs = SshConfigs(vault, self.registry)
        file = config_file(os.environ).with_name("ssh_config")
        # The file serves the user whose daemon this is, and so its sockets have the rights of the owner.
        sender = Caller("connmgr ssh-config", Access(), boot_time())
        self.kept_config = KeptConfig(
            vault, self.ssh_configs, self.sockets, file, settings.data_dir, sender, replace_private
        )
        self.cleanup.callback(self.kept_config.close)

    def open_jobs(self) -> None:
        """Create what runs on without a client: jobs, with the links that they keep; and blobs."""
        vault, settings = self.vault, self.settings
        self.idle_links = IdleLinks()
        self.cleanup.callback(self.idle_links.let_go, 0.0)
        reach = RemoteHosts(self.links, self.idle_links)
        limits = JobLimits(settings.max_connection_jobs, settings.max_jobs)
        self.jobs = Jobs(vault, reach, limits, lambda: self.slots.taken(holder()), self.events.publish)
        self.cleanup.callback(self.jobs.close, CLOSE_SECONDS)
        reaper = Reaper(vault, self.jobs, reach, self.idle_links, partial(_record_end, vault, self.audit))
        self.cleanup.callback(reaper.close, CLOSE_SECONDS)
        self.orphans = OrphanJobs(vault, reach, self.jobs)
        self.blobs = Blobs(settings.data_dir / "spool", quota=settings.blob_quota, ttl=settings.blob_ttl)
        self.cleanup.callback(self.blobs.close)

    def open_rights(self) -> None:
        """Create what decides who may do what: loans, tokens, approvals, saved commands, authorisation."""
        vault, publish = self.vault, self.events.publish
        self.loans = Loans()
        self.ending = ending = Ending(
            vault, self.streams, self.terminals, self.tunnels, self.sockets, self.jobs, self.loans, self.audit
        )
        self.loans.ended, self.loans.ended_since, self.loans.used = (
            ending.loan_over,
            ending.end_borrowed,
            ending.loan_used,
        )
        self.cleanup.callback(self.loans.close)
        self.grants = Grants(vault.tokens, vault.principals.lasting_key(b"connmgr.tokens"), ending, publish)
        self.cleanup.callback(self.grants.in_use.close)
        key = vault.principals.lasting_key(b"connmgr.approval")
        requested = self.registry.plugins.hook.connmgr_approval_requested
        self.approvals = Approvals(vault.approvals, key, continuation, lambda shown: requested(approval=shown), publish)
        self.cleanup.callback(self.approvals.waiters.close)
        self.commands = SavedCommands(vault.commands)
        grounds = Grounds(vault, self.registry, self.shells)
        self.authorisation = _authorisation(vault, self.registry, self.approvals, self.jobs, self.terminals, grounds)

    def open_runs(self) -> None:
        """Create what the daemon does by itself: facts, runs, schedules with their notices, inventories."""
        vault, registry, publish = self.vault, self.registry, self.events.publish
        self.facts = Gatherer(vault, self.links, registry.plugins.hook.connmgr_fact_programs)
        authors = Authors(self.grants, self.authorisation, self.commands)
        record = partial(_record_run, self.audit)
        away = partial(leads_to_host, vault, registry)
        self.runs = Runs(
            vault,
            self.shells,
            self.jobs,
            self.facts,
            authors,
            self.settings,
            record,
            away,
            self.outputs,
            publish,
        )
        # Runs need the tokens in use, which need what ends with them.
        self.ending.runs = self.runs
        self.cleanup.callback(self.runs.close, CLOSE_SECONDS)
        notices = Notices(registry.plugins.hook.connmgr_run_ended)
        self.cleanup.callback(notices.close, CLOSE_SECONDS)
        self.schedules = Schedules(vault, notices, publish)
        self.cleanup.callback(self.schedules.close, CLOSE_SECONDS)
        # A schedule whose run is over may fire again.
        self.runs.changed = self.schedules.poke
        self.inventories = Inventories(vault, self.runs.name)
        self.cleanup.callback(self.inventories.close, CLOSE_SECONDS)

    def services(self, auth_file: AuthFile, stop: Stop) -> Services:
        """Return all of them, with what only the pipeline of requests uses."""
        settings, vault, authorisation = self.settings, self.vault, self.authorisation
        anonymous = Caller("anonymous", Access(), boot_time())
        tokens = Tokens(
            settings.session_ttl,
            settings.unlock_ttl,
            anonymous,
            self.grants,
            self.loans,
            page_ttl=settings.web_ttl,
            left=lambda page, why: self.streams.end_session(page.id, why),
        )
        # Closed first, because it was opened last: no session begins anything while the others close.
        self.cleanup.callback(tokens.close)
        tokens.watch()
        lookout = Lookout(
            self.links, self.shells, self.jobs, vault.jobs, self.terminals, authorisation, self.events.publish
        )
        changes = ChangeStore(
            settings.data_dir / "undo",
            lambda: vault.principals.lasting_key(b"connmgr.undo"),
            total=settings.max_undo,
            days=settings.undo_days,
        )
        return Services(
            settings=settings,
            vault=vault,
            registry=self.registry,
            links=self.links,
            signers=self.signers,
            idle_links=self.idle_links,
            shells=self.shells,
            streams=self.streams,
            terminals=self.terminals,
            tunnels=self.tunnels,
            sockets=self.sockets,
            ssh_configs=self.ssh_configs,
            kept_config=self.kept_config,
            facts=self.facts,
            jobs=self.jobs,
            runs=self.runs,
            schedules=self.schedules,
            inventories=self.inventories,
            orphans=self.orphans,
            authorisation=authorisation,
            approvals=self.approvals,
            commands=self.commands,
            grants=self.grants,
            loans=self.loans,
            credentials=Credentials(lambda: auth_file.content, lambda: _api_key(settings.data_dir)),
            tokens=tokens,
            tickets=Tickets(),
            listeners=Listeners(self.events, self.streams, authorisation, lookout.look),
            events=self.events,
            scraper=Scraper(lambda: _metrics_token(settings)),
            anonymous=anonymous,
            slots=self.slots,
            answers=LargeAnswers(),
            outputs=self.outputs,
            pace=self.pace,
            computing=self.computing,
            snapshots=Snapshots(),
            changes=changes,
            upgrades=Pace(),
            page_files=PageFiles(),
            scans=Queues(SCANS, SCAN_SECONDS, SCANNING),
            blobs=self.blobs,
            audit=self.audit,
            subject_names=self.names,
            counts=Counts(),
            stopping=lambda: stop.requested,
            stop=stop.request,
        )


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
    states, codes = [end.state for _, end in outcomes], [end.exit_code for _, end in outcomes]
    audit.record(facts, about, {"run": run.id, "states": states, "exitCodes": codes})


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
