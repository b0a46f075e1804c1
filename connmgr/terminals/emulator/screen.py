"""The screen of a terminal: xterm's characters, cursor and modes after the terminal's output.

:class:`Parser` splits the output, :class:`Screen` acts on its parts, and :class:`SkippedOutput` saves the settings of
output that nobody has the time to draw.

The library pyte (0.8) was tried: 0.4 MB/s instead of 1.1 for lines of one letter, no alternate screen, control strings
printed as text, and saved cursors and strings that grow without end. Tests compare this screen with tmux's.
"""

from __future__ import annotations

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from wcwidth import wcwidth

from connmgr.terminals.emulator.canvas import ALTERNATE, FOLLOWED_MODES, ORIGIN, TAB_COLUMNS, Canvas, SavedCursor
from connmgr.terminals.emulator.cells import MAX_COMBINED, PLAIN, Grid, apply_sgr

MAX_SEQUENCE = 1024
"""Longest control sequence, in characters; a longer one is ignored."""

MAX_STRING = 4096
"""Longest control string, such as a title, in characters; the rest is ignored."""

MAX_NUMBER = 65535
MAX_PARAMETERS = 32

ESC = "\x1b"
_CANCEL = "\x18\x1a"
_TEXT = re.compile("[^\x00-\x1f\x7f-\x9f]+")
_BODY = re.compile("[ -?]*")
_INTERMEDIATES = re.compile("[ -/]*")
_STRING_END = re.compile("[\x07\x18\x1a\x1b]")
_STRINGS = "]PX^_"

Parameters = list[list[int]]
"""Numbers with their subparameters; -1 stands for an omitted one."""


class Parser(ABC):
    """Splits output into text, controls, and sequences that begin with ESC (ECMA-48, xterm's ctlseqs).

    It calls its methods for the output given to ``feed``, in pieces of any size.
    """

    def __init__(self) -> None:
        self._rest = ""
        self._string: str | None = None

    @property
    def pending(self) -> str:
        """The incomplete sequence, which brings another terminal in the same state to the same point."""
        return f"{ESC}{self._string}" if self._string is not None else self._rest

    def forget_pending(self) -> None:
        """Drop an incomplete sequence: the next output does not continue it."""
        self._rest, self._string = "", None

    @abstractmethod
    def text(self, text: str) -> None:
        """Handle characters other than controls."""

    @abstractmethod
    def control(self, character: str) -> None:
        """Handle a control of one character."""

    @abstractmethod
    def escape(self, sequence: str) -> None:
        """Handle an escape sequence without its ESC: intermediate characters and a final one."""

    @abstractmethod
    def control_sequence(self, private: str, parameters: Parameters, final: str) -> None:
        """Handle a control sequence; ``final`` begins with its intermediate characters."""

    @abstractmethod
    def string(self, kind: str, text: str) -> None:
        """Handle a control string; ``kind`` is ``]`` for OSC, ``P`` for DCS, and so on."""

    def feed(self, data: str) -> None:
        """Process more output."""
        data, self._rest = self._rest + data, ""
        position, length = 0, len(data)
        while position < length:
            if self._string is not None:
                position = self._continue_string(data, position)
            elif match := _TEXT.match(data, position):
                self.text(match[0])
                position = match.end()
            elif data[position] == ESC:
                position = self._escape(data, position)
            else:
                self.control(data[position])
                position += 1

    def _escape(self, data: str, start: int) -> int:
        """Handle the sequence that begins at ``start``, and return where it ends."""
        introducer = data[start + 1 : start + 2]
        if introducer == "[":
            return self._control_sequence(data, start + 2)
        if introducer and introducer in _STRINGS:
            self._string = introducer
            return start + 2
        match = _INTERMEDIATES.match(data, start + 1)
        end = match.end() if match else start + 1
        if end == len(data):
            self._rest = data[start : start + MAX_SEQUENCE]
            return end
        if not "0" <= data[end] <= "~":
            # Another control ends the sequence, and is handled itself.
            return end
        self.escape(data[start + 1 : end + 1])
        return end + 1

    def _control_sequence(self, data: str, position: int) -> int:
        body = ""
        while True:
            match = _BODY.match(data, position)
            end = match.end() if match else position
            body = (body + data[position : min(end, position + MAX_SEQUENCE)])[:MAX_SEQUENCE]
            if end == len(data):
                self._rest = f"{ESC}[{body}"
                return end
            final = data[end]
            # CAN and SUB cancel the sequence, ESC begins another one, and a character beyond ASCII ends it and is
            # drawn.
            if final == ESC or final in _CANCEL or final > "~":
                return end if final == ESC or final > "\x9f" else end + 1
            position = end + 1
            if final >= "@":
                if len(body) < MAX_SEQUENCE:
                    self.dispatch(body, final)
                return position
            # A control within a sequence is executed at once, and the sequence goes on, as on a VT100.
            self.control(final)

    def dispatch(self, body: str, final: str) -> None:
        """Handle the control sequence of ``body``, its parameters and intermediate characters, and ``final``."""
        numbers = body.rstrip(" !\"#$%&'()*+,-./")
        private = numbers[:1] if numbers[:1] in ("<", "=", ">", "?") else ""
        fields = numbers[len(private) :].split(";")[:MAX_PARAMETERS]
        if not all(field.replace(":", "").isdecimal() or not field.replace(":", "") for field in fields):
            return
        parameters = [[_bounded(part) for part in field.split(":")] for field in fields] if any(fields) else []
        self.control_sequence(private, parameters, body[len(numbers) :] + final)

    def _continue_string(self, data: str, position: int) -> int:
        string = self._string or ""
        match = _STRING_END.search(data, position)
        end = match.start() if match else len(data)
        string += data[position : min(end, position + MAX_STRING - len(string))]
        if match is None:
            self._string = string
            return end
        # BEL ends an OSC only, by xterm's usage; in all other strings it is content, and ST ends them (ECMA-48, 5.6).
        if match[0] == "\x07" and not string.startswith("]"):
            self._string = (string + "\x07")[:MAX_STRING]
            return end + 1
        self._string = None
        if match[0] not in _CANCEL:
            self.string(string[0], string[1:])
        # ESC begins the terminator, or another sequence.
        return end if match[0] == ESC else end + 1


def _bounded(digits: str) -> int:
    # Six digits are beyond the maximum already, and int() takes long for thousands.
    return min(int(digits[:6]), MAX_NUMBER) if digits else -1


MAX_CELLS = 1 << 18
"""Characters of the largest screen."""

MAX_TITLE = 256

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")

# What lasts whatever is drawn: charsets, the keypad, the cursor's look, modes that do not move the cursor, and strings.
_SETTING = (
    rb"[()][0-9A-Za-z]|[=>]|\[[0-6]? q"
    rb"|\[\?(?:1|5|7|9|12|25|66|100[0-7]|1015|1016|2004|2026)[hl]"
    rb"|\][^\x00-\x1f\x7f]{0,2048}(?:\x07|\x1b\\)"
)
# Lines are text, controls of one character, colours, settings, and what erases, moves or edits within a line.
_BEYOND_LINES = re.compile(rb"\x1b(?!\[[0-9;:]{0,256}[@CDGKPXm]|\\|" + _SETTING + rb")")
_SETTINGS = re.compile(rb"[\x0e\x0f]|\x1b(?!\]8;)(?:" + _SETTING + rb")")
_STYLE = re.compile(rb"\x1b\[([0-9;:]*)m")
_RESETS = b"\x1b[m", b"\x1b[0m"


def length_of_lines(data: bytes) -> int:
    """Return the length of the beginning of ``data`` that consists of lines for :meth:`Screen.scroll_past`."""
    other = _BEYOND_LINES.search(data)
    return other.start() if other else len(data)


class ScreenBuffer(NamedTuple):
    """The characters and the saved cursor of the primary or the alternate screen."""

    grid: Grid
    saved: SavedCursor


class Screen(Parser, Canvas):
    """A screen that follows a terminal's output.

    The size limits the memory, whatever the output, and a control sequence costs no more than writing all cells. Not
    safe to use from several threads.
    """

    def __init__(self, columns: int, rows: int) -> None:
        Parser.__init__(self)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        Canvas.__init__(self, columns, rows)

    def reset(self) -> None:
        self.primary: ScreenBuffer | None = None
        """Present while the alternate screen is shown."""
        self.title = ""
        self.cursor_shape = 0
        self.key_format = 0
        super().reset()

    def soft_reset(self) -> None:
        super().soft_reset()
        self.keypad = False
        self.last = ""
        """The character that REP repeats."""

    @property
    def undecoded(self) -> bytes:
        """Bytes of an incomplete character or sequence."""
        return self.pending.encode("utf-8", errors="replace") + self._decoder.getstate()[0]

    @property
    def cursor_report(self) -> bytes:
        """The terminal's answer when a program asks for the cursor's place (CPR)."""
        return f"\x1b[{self.y + 1};{self.column + 1}R".encode()

    def take(self, data: bytes) -> None:
        """Process output, in pieces of any size."""
        self.feed(self._decoder.decode(data))

    def scroll_past(self, lines: bytes) -> int:
        """Process the beginning of ``lines`` that is not on the screen any more after all of them; return its length.

        The screen is then in the state that :meth:`take` leads to once the rest of ``lines`` was taken too; until then
        its characters are older.
        """
        # An unfinished sequence may change how the lines are read, and outside of its region a screen does not scroll.
        if self.undecoded or not self.top <= self.y <= self.bottom:
            return 0
        end = len(lines)
        for _ in range(self.top, self.bottom + 1):
            end = lines.rfind(b"\n", 0, end)
            if end < 0:
                return 0
        # The column at the return does not matter. From there on, each row of the region is scrolled away if the cursor
        # is at the last one.
        end = lines.rfind(b"\r", 0, end)
        if end < 0 or lines.count(b"\n", 0, end) < self.bottom - self.y:
            return 0
        self.y = self.bottom
        settings = [match[0] for match in _SETTINGS.finditer(lines, 0, end)]
        # The last of each, in order.
        for setting in reversed(dict.fromkeys(reversed(settings))):
            self.feed(setting.decode(errors="replace"))
        reset = max(lines.rfind(each, 0, end) for each in _RESETS)
        for style in _STYLE.finditer(lines, max(0, reset), end):
            self.dispatch(style[1].decode(), "m")
        return end

    def forget_pending(self) -> None:
        """Drop an incomplete sequence: the next output does not continue it."""
        self._decoder.reset()
        super().forget_pending()

    def resize(self, columns: int, rows: int) -> None:
        """Change the size as xterm does: lines are not wrapped again, and the cursor stays on its line."""
        if (columns, rows) == (self.columns, self.rows):
            return
        moved = self.grid.resize(columns, rows, self.y)
        self.x, self.y = min(self.column, columns - 1), min(self.y - moved, rows - 1)
        self.saved = _within(self.saved, columns, rows)
        if self.primary is not None:
            self.primary.grid.resize(columns, rows, self.primary.saved.y)
            self.primary = self.primary._replace(saved=_within(self.primary.saved, columns, rows))
        # New columns get the usual stops; those that a program has set or cleared stay so.
        further = range(-(-self.columns // TAB_COLUMNS) * TAB_COLUMNS, columns, TAB_COLUMNS)
        self.tabs = {tab for tab in self.tabs.union(further) if tab < columns}
        self.columns, self.rows = columns, rows
        self.top, self.bottom = 0, rows - 1

    def set_mode(self, number: int, on: bool) -> None:
        """Set or reset a private mode (DECSET, DECRST)."""
        if number in ALTERNATE:
            self._switch(number, on)
        elif number == 1048:
            self.save_cursor() if on else self.restore_cursor()
        elif number in FOLLOWED_MODES:
            self.modes -= FOLLOWED_MODES[number] | {number}
            if on:
                self.modes.add(number)
            if number == ORIGIN:
                self.go(0, 0)

    def _switch(self, number: int, on: bool) -> None:
        """Show the alternate screen, or the primary one."""
        # xterm keeps the alternate screen's characters for programs that switch by 47. Here each switch starts blank,
        # as with 1049, by which today's programs switch (smcup of terminfo).
        if on and self.primary is None:
            if number == 1049:
                self.save_cursor()
            self.primary = ScreenBuffer(self.grid, self.saved)
            self.grid, self.saved = Grid(self.columns, self.rows), SavedCursor()
        elif not on:
            if self.primary is not None:
                (self.grid, self.saved), self.primary = self.primary, None
            if number == 1049:
                self.restore_cursor()

    def text(self, text: str) -> None:
        self.put(text)
        self.last = text[-1]

    def control(self, character: str) -> None:
        action = _CONTROLS.get(character)
        if action:
            action(self)
            self.last = ""

    def escape(self, sequence: str) -> None:
        action = _ESCAPES.get(sequence)
        if action:
            action(self)
        elif len(sequence) == 2 and sequence[0] in "()":
            self.charsets["()".index(sequence[0])] = "0" if sequence[1] == "0" else "B"
        self.last = ""

    def control_sequence(self, private: str, parameters: Parameters, final: str) -> None:
        action = _SEQUENCES.get(private + final)
        if action:
            action(self, parameters)
        self.last = ""

    def string(self, kind: str, text: str) -> None:
        number, _, rest = text.partition(";")
        if kind == "]" and number in ("0", "2"):
            self.title = _CONTROL.sub("", rest)[:MAX_TITLE]


def _within(saved: SavedCursor, columns: int, rows: int) -> SavedCursor:
    return saved._replace(x=min(saved.x, columns - 1), y=min(saved.y, rows - 1))


def _number(parameters: Parameters, default: int = 0, index: int = 0) -> int:
    number = parameters[index][0] if index < len(parameters) else -1
    return default if number < 0 else number


def _count(parameters: Parameters, index: int = 0) -> int:
    """Return a parameter; 1 if it is omitted or 0."""
    return _number(parameters, 1, index) or 1


def _repeat(screen: Screen, parameters: Parameters) -> None:
    # REP may ask for 65,535 characters; more than the screen holds would only cost time.
    width = wcwidth(screen.last) if screen.last else 0
    most = screen.columns * screen.rows // width if width > 0 else MAX_COMBINED
    screen.put(screen.last * min(_count(parameters), most))


def _column(screen: Screen, parameters: Parameters) -> None:
    screen.x = min(screen.columns, _count(parameters)) - 1


def _place(screen: Screen, parameters: Parameters) -> None:
    screen.go(_count(parameters, 1) - 1, _count(parameters) - 1)


def _row(screen: Screen, parameters: Parameters) -> None:
    screen.go(screen.column, _count(parameters) - 1)


def _lines_up(screen: Screen, parameters: Parameters) -> None:
    screen.up(_count(parameters))
    screen.x = 0


def _lines_down(screen: Screen, parameters: Parameters) -> None:
    screen.down(_count(parameters))
    screen.x = 0


def _scroll_down(screen: Screen, parameters: Parameters) -> None:
    # With more parameters it is a request to track the mouse.
    if len(parameters) <= 1:
        screen.scroll(-_count(parameters))


def _margins(screen: Screen, parameters: Parameters) -> None:
    bottom = min(screen.rows, _number(parameters, index=1) or screen.rows)
    screen.set_margins(_count(parameters) - 1, bottom - 1)


def _style(screen: Screen, parameters: Parameters) -> None:
    screen.style = apply_sgr(screen.style, [[max(0, number) for number in parameter] for parameter in parameters])


def _ansi_modes(on: bool) -> Callable[[Screen, Parameters], None]:
    def change(screen: Screen, parameters: Parameters) -> None:
        for number, *_ in parameters:
            if number == 4:
                screen.insert_mode = on
            elif number == 20:
                screen.newline_mode = on

    return change


def _modes(on: bool) -> Callable[[Screen, Parameters], None]:
    def change(screen: Screen, parameters: Parameters) -> None:
        for number, *_ in parameters:
            screen.set_mode(number, on)

    return change


def _set(name: str, value: object) -> Callable[[Screen], None]:
    return lambda screen: setattr(screen, name, value)


def _shape(screen: Screen, parameters: Parameters) -> None:
    if _number(parameters) <= 6:
        screen.cursor_shape = _number(parameters)


def _key_format(screen: Screen, parameters: Parameters) -> None:
    if not parameters or _number(parameters) == 4:
        screen.key_format = min(2, _number(parameters, index=1))


_CONTROLS: dict[str, Callable[[Screen], None]] = {
    "\b": lambda screen: screen.left(1),
    "\t": lambda screen: screen.tab(1),
    "\n": Screen.line_feed,
    "\v": Screen.line_feed,
    "\f": Screen.line_feed,
    "\r": _set("x", 0),
    "\x0e": _set("shifted", True),
    "\x0f": _set("shifted", False),
}

_ESCAPES: dict[str, Callable[[Screen], None]] = {
    "7": Screen.save_cursor,
    "8": Screen.restore_cursor,
    "D": Screen.index,
    "E": Screen.next_line,
    "H": lambda screen: screen.tabs.add(screen.column),
    "M": Screen.reverse_index,
    "c": Screen.reset,
    "=": _set("keypad", True),
    ">": _set("keypad", False),
    "#8": Screen.align,
}

_SEQUENCES: dict[str, Callable[[Screen, Parameters], None]] = {
    "@": lambda screen, numbers: screen.insert_characters(_count(numbers)),
    "A": lambda screen, numbers: screen.up(_count(numbers)),
    "B": lambda screen, numbers: screen.down(_count(numbers)),
    "C": lambda screen, numbers: screen.right(_count(numbers)),
    "D": lambda screen, numbers: screen.left(_count(numbers)),
    "E": _lines_down,
    "F": _lines_up,
    "G": _column,
    "H": _place,
    "I": lambda screen, numbers: screen.tab(_count(numbers)),
    "J": lambda screen, numbers: screen.erase_display(_number(numbers)),
    "K": lambda screen, numbers: screen.erase_line(_number(numbers)),
    "L": lambda screen, numbers: screen.insert_lines(_count(numbers)),
    "M": lambda screen, numbers: screen.delete_lines(_count(numbers)),
    "P": lambda screen, numbers: screen.delete_characters(_count(numbers)),
    "S": lambda screen, numbers: screen.scroll(_count(numbers)),
    "T": _scroll_down,
    "X": lambda screen, numbers: screen.erase_characters(_count(numbers)),
    "Z": lambda screen, numbers: screen.tab_back(_count(numbers)),
    "`": _column,
    "a": lambda screen, numbers: screen.right(_count(numbers)),
    "b": _repeat,
    "d": _row,
    "e": lambda screen, numbers: screen.down(_count(numbers)),
    "f": _place,
    "g": lambda screen, numbers: screen.clear_tabs(_number(numbers)),
    "h": _ansi_modes(True),
    "l": _ansi_modes(False),
    "m": _style,
    "r": _margins,
    "s": lambda screen, _: screen.save_cursor(),
    "u": lambda screen, _: screen.restore_cursor(),
    " q": _shape,
    "!p": lambda screen, _: screen.soft_reset(),
    "?h": _modes(True),
    "?l": _modes(False),
    ">m": _key_format,
}


_QUERY = re.compile(rb"\x1b\[(?:0?c|5n|6n)")

ASKS_FOR_CURSOR = b"\x1b[6n"
"""The query that :attr:`Screen.cursor_report` answers (DSR 6)."""

REPLIES = {b"\x1b[c": b"\x1b[?62;22c", b"\x1b[5n": b"\x1b[0n"}
"""The answers that depend on no screen: a terminal of DEC's second level with colours (DA1), and no fault (DSR 5)."""


def queries_in(printed: bytes) -> list[bytes]:
    """Return each query in ``printed`` that a terminal answers: keys of ``REPLIES``, and ``ASKS_FOR_CURSOR``."""
    if b"\x1b[" not in printed:
        return []
    queries = {match[0].replace(b"[0c", b"[c") for match in _QUERY.finditer(printed)}
    return [query for query in (*REPLIES, ASKS_FOR_CURSOR) if query in queries]


OVERLAP_BYTES = 600
"""Longest sequence that is recognised across the border of two pieces."""

MAX_SETTINGS = 500
"""Most different settings that are remembered; a terminal has a tenth as many modes."""

_ALL_MODES = FOLLOWED_MODES.keys() | ALTERNATE
# Colours, by far the most frequent sequences, are ruled out first.
_SKIPPED_SETTINGS = re.compile(
    rb"\x1b(?!\[[0-9;]{0,64}m)"
    rb"(?:\[\?(?P<modes>[0-9;]{1,64}[hl])|\[(?P<margins>[0-9;]{0,11})r|(?P<reset>c)|(?P<soft>\[!p)|(?P<keypad>[=>])"
    rb"|\][02](?P<title>;[^\x00-\x1f]{0,512})[\x07\x1b])"
)

SkippedSetting = tuple[bytes, ...]
"""The groups of the expression above; ``modes`` has one mode."""


class SkippedOutput:
    """The modes, title and margins that skipped pieces of output set."""

    def __init__(self) -> None:
        self._tail = b""
        # In the order of their last occurrence.
        self._settings: dict[SkippedSetting, None] = {}

    def scan(self, piece: bytes) -> None:
        """Search the next piece."""
        text = self._tail + piece
        self._tail = text[-OVERLAP_BYTES:]
        if b"\x1b" not in text:
            return
        for groups in reversed(dict.fromkeys(reversed(_SKIPPED_SETTINGS.findall(text)))):
            for setting in _by_mode(groups):
                self._settings.pop(setting, None)
                self._settings[setting] = None
                if setting[2]:
                    # A full reset undoes all before it.
                    self._settings = {setting: None}
        # All at once: a dict finds its first member by passing over the places of those that were removed before.
        for setting in list(islice(self._settings, max(0, len(self._settings) - MAX_SETTINGS))):
            del self._settings[setting]

    def apply(self, screen: Screen) -> None:
        """Apply the settings to ``screen``; the next output then continues after the skipped part."""
        screen.forget_pending()
        screen.style = PLAIN
        for modes, margins, reset, soft, keypad, title in self._settings:
            if reset:
                screen.reset()
            elif soft:
                screen.soft_reset()
            elif modes:
                screen.set_mode(int(modes[:-1]), modes.endswith(b"h"))
            elif keypad:
                screen.keypad = keypad == b"="
            elif title:
                screen.string("]", f"2{title.decode(errors='replace')}")
            else:
                _set_margins(screen, margins)
        # After much output the cursor is usually at the bottom.
        screen.x, screen.y = 0, screen.bottom


def _by_mode(setting: SkippedSetting) -> Iterator[SkippedSetting]:
    """Yield a setting for each mode, so that few differ: another alternate screen costs as much as drawing it."""
    modes = setting[0]
    if not modes:
        yield setting
    for number in modes[:-1].split(b";"):
        if number and int(number) in _ALL_MODES:
            yield (b"%d%c" % (int(number), modes[-1]), *setting[1:])


def _set_margins(screen: Screen, text: bytes) -> None:
    top, _, bottom = text.partition(b";")
    last = int(bottom) if bottom.isdigit() and int(bottom) else screen.rows
    screen.set_margins((int(top) if top.isdigit() and int(top) else 1) - 1, min(last, screen.rows) - 1)
