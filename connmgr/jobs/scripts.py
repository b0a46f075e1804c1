"""The programs of ``far/``, in the language of sh, that start jobs and look at them.

Each runs in a helper, as the user of the connection, and answers as :class:`connmgr.engine.rpc.Exchange` expects.
They need only POSIX.1-2017; if present they use setsid, /proc, and the extensions of dd and stat.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from connmgr import errors
from connmgr.engine.kill import TREE
from connmgr.engine.rpc import EXCHANGE, Program
from connmgr.engine.script import Source, quote

REFUSALS: dict[str, errors.ConnmgrError] = {
    error.code: error
    for error in (
        errors.NoSuchDirectory("The job's working directory cannot be entered."),
        errors.NoSuchFile("The place for the job vanished."),
        errors.FileExists("A job of that id exists already."),
        errors.WrongFileType("Something else is in the place of the user's jobs."),
        errors.PermissionDenied("The far side's user has no permission for that."),
        errors.NoSpace("There is no space left for that."),
        errors.StdinClosed("The job has stopped taking input."),
        errors.TransferFailed("What was sent did not arrive whole."),
        errors.FileOperationFailed("The far side could not do it."),
    )
}


@dataclass(frozen=True)
class _Variable(Source):
    """Programs, joined, as the value of a variable of that name."""

    package: str
    name: str
    language: str = "sh"
    sources: tuple[Source, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.name}={quote(''.join(source.text for source in self.sources).encode()).decode()}\n"


def _source(name: str) -> Source:
    return Source(__package__, name)


_STATE = _source("state")
_LIBRARY = (
    EXCHANGE,
    _source("prelude"),
    _STATE,
    _Variable(__package__, "job_runner", sources=(_source("runner"),)),
    _Variable(__package__, "job_terminator", sources=(_STATE, TREE, _source("terminate"))),
)


_SIZES = "size=$1 block=$2 blocks=$3 left=$4; shift 4"


def _program(name: str, *more: str, opening: str = "", fed: bool = False) -> Program:
    body = tuple(_source(file) for file in (name, *more))
    return Program(f"job_run_{name}", _LIBRARY, body, _source("places"), opening, fed=fed, refusals=REFUSALS)


START = _program("start", opening="fed=")
"""``id cap seconds open directory cwd``, the script in two parts, ``clean tell``, and the argv of a shell that runs
the script on descriptor 7: the two parts, with the variable ``job_setting`` between them.

``ok``, the runner's process id and start time, the system's boot, a warning or ``-``, and the job's directory.
"""

START_FED = replace(START, name="job_run_start_fed", opening=f"fed=1; {_SIZES}", fed=True)
"""The input's size and block size as for WRITE in :mod:`connmgr.fs.scripts`; then as START.

``ok`` when it is ready for the input; then as START, when the input is stored.
"""

LOOK = _program("look", "describe")
"""``id …``. ``ok``, then per job a line: id, state, cap, status, ``over``, lost output; then the output of ls."""

READ = _program("read", "describe", "content")
"""``id block block count``. As LOOK; after a mark each, the blocks of both streams and the final directory."""

KILL = _program("kill", "describe")
"""``id signal grace note``. ``ok`` and the number of processes that refused the signal; then as LOOK."""

INPUT = _program("input", opening=_SIZES, fed=True)
"""The sizes as for START_FED, ``id eof nonce``, and the most bytes of unread input.

``ok`` when it is ready for the data, and ``ok`` when they are stored.
"""

REMOVE = _program("remove")
"""``id …``. ``ok``."""

LIST = _program("list")
"""``seconds``. ``ok``, then lines on jobs that began at least so long ago: id, and age in seconds or ``-``."""
