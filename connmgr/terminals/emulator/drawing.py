"""Draws a screen on another terminal of the same size."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from connmgr.terminals.emulator.canvas import FOLLOWED_MODES, INITIAL, ORIGIN, TAB_COLUMNS, SavedCursor
from connmgr.terminals.emulator.cells import PLAIN, SPACER, Row
from connmgr.terminals.emulator.screen import Screen, ScreenBuffer

_OFF = ";".join(str(number) for number in sorted(FOLLOWED_MODES) if number not in INITIAL)
_FRESH = f"\x1b[?1049l\x1b[!p\x1b[?7;25h\x1b[?{_OFF}l\x1b[4;20l\x1b>\x1b[>4m\x1b[0 q\x1b(B\x1b)B\x0f\x1b[r\x1b[m"
_PLAINLY = "\x1b[?6l\x1b(B\x1b)B\x0f\x1b[m"
_CLEAR = "\x1b[H\x1b[2J"


def draw(screen: Screen, between_rows: Callable[[], None] = lambda: None) -> bytes:
    """Return output that makes any xterm-like terminal of the same size, in any state, show ``screen`` in its state."""
    # A large screen takes a second or two, in which `between_rows` lets others go first.
    # An incomplete sequence comes last, so that further output can complete it.
    return "".join(_parts(screen, between_rows)).encode("utf-8", errors="replace") + screen.undecoded


def _parts(screen: Screen, between_rows: Callable[[], None]) -> Iterator[str]:
    yield _FRESH
    shown = ScreenBuffer(screen.grid, screen.saved)
    yield from _buffer(screen.primary or shown, between_rows)
    if screen.primary is not None:
        # 1049 saves the current cursor.
        yield from _cursor_state(screen.primary.saved)
        yield f"\x1b[?1049h{_PLAINLY}"
        yield from _buffer(shown, between_rows)
    yield from _tabs(screen)
    if screen.title:
        yield f"\x1b]2;{screen.title}\x07"
    if (screen.top, screen.bottom) != (0, screen.rows - 1):
        yield f"\x1b[{screen.top + 1};{screen.bottom + 1}r"
    yield from _cursor(screen)
    yield from _modes(screen)


def _buffer(buffer: ScreenBuffer, between_rows: Callable[[], None]) -> Iterator[str]:
    yield _CLEAR
    for y, row in enumerate(buffer.grid.rows):
        yield from _row(y, row)
        between_rows()
    if buffer.saved != SavedCursor():
        yield from _cursor_state(buffer.saved)
        yield f"\x1b7{_PLAINLY}"


def _row(y: int, row: Row) -> Iterator[str]:
    end = len(row.text)
    while end and row.text[end - 1] == " " and row.styles[end - 1] == PLAIN:
        end -= 1
    if not end:
        return
    yield f"\x1b[{y + 1}H"
    style = PLAIN
    for text, look in zip(row.text[:end], row.styles, strict=False):
        if look != style and text != SPACER:
            yield look.sequence
            style = look
        yield text
    if style != PLAIN:
        yield PLAIN.sequence


def _cursor_state(saved: SavedCursor) -> Iterator[str]:
    """Restore a saved cursor: its place and the state saved with it."""
    yield f"\x1b[{saved.y + 1};{saved.x + 1}H"
    if saved.origin:
        yield f"\x1b[?6h\x1b[{saved.y + 1};{saved.x + 1}H"
    yield from _charsets(list(saved.charsets), saved.shifted)
    yield saved.style.sequence


def _charsets(charsets: list[str], shifted: bool) -> Iterator[str]:
    yield f"\x1b({charsets[0]}\x1b){charsets[1]}" if charsets != ["B", "B"] else ""
    yield "\x0e" if shifted else ""


def _tabs(screen: Screen) -> Iterator[str]:
    if screen.tabs != set(range(0, screen.columns, TAB_COLUMNS)):
        yield "\x1b[3g" + "".join(f"\x1b[{tab + 1}G\x1bH" for tab in sorted(screen.tabs))


def _cursor(screen: Screen) -> Iterator[str]:
    """Place the cursor; if the next character begins a new line, by rewriting the last one of this line."""
    first = 0
    if ORIGIN in screen.modes:
        yield "\x1b[?6h"
        first = screen.top
    row = screen.grid.rows[screen.y]
    x = screen.x
    if x == screen.columns:
        x -= 2 if row.text[x - 1] == SPACER and x > 1 else 1
        yield f"\x1b[{screen.y - first + 1};{x + 1}H{row.styles[x].sequence}{row.text[x]}"
    else:
        yield f"\x1b[{screen.y - first + 1};{x + 1}H"
    yield screen.style.sequence
    yield from _charsets(screen.charsets, screen.shifted)


def _modes(screen: Screen) -> Iterator[str]:
    on = sorted(screen.modes - INITIAL - {ORIGIN})
    if on:
        yield f"\x1b[?{';'.join(map(str, on))}h"
    off = sorted(INITIAL - screen.modes)
    if off:
        yield f"\x1b[?{';'.join(map(str, off))}l"
    yield "\x1b[4h" if screen.insert_mode else ""
    yield "\x1b[20h" if screen.newline_mode else ""
    yield "\x1b=" if screen.keypad else ""
    yield f"\x1b[>4;{screen.key_format}m" if screen.key_format else ""
    yield f"\x1b[{screen.cursor_shape} q" if screen.cursor_shape else ""
