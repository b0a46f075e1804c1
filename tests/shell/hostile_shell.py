"""A supervisor that answers the greeting as a shell does, and each command with the flood that the command names."""

from __future__ import annotations

import os
import re
import sys

SIZE = 16 << 20
FLOODS = {
    b"variables": (b":%sc\n/\n:%sv\nexport A=", b"$'a'", b"(\n:%sx\n:%s 0\n"),
    b"quotes": (b":%sc\n/\n:%sv\nexport A=", b'"a"', b"(\n:%sx\n:%s 0\n"),
    b"array": (b":%sc\n/\n:%sv\nexport A=(", b" a", b"\n:%sx\n:%s 0\n"),
    b"directory": (b":%sc\n", b"/d", b"\n:%sv\n:%sx\n:%s 0\n"),
    b"colons": (b"", b":", b":%s 0\n"),
    b"almost": (b"", b":%.s", b":%s 0\n"),
    b"endless": (b":%s", b"x", b""),
    b"digits": (b":%s ", b"9", b"\n"),
    b"unknown": (b":%szz\n", b"x", b""),
}
"""For each word of a command what is printed before, again and again, and last; %s is the nonce, %.s that cut short."""


def main() -> None:
    """Answer until the input ends."""
    text = b""
    for line in sys.stdin.buffer:
        text += line
        end = re.search(rb'_cm_end (?:0|"\$\?") ([\w-]{22})(?:\n|;;)', text)
        if end is None:
            continue
        nonce = end[1]
        named = next((name for name in FLOODS if b"flood " + name in text), None)
        if b"facts " + nonce in text:
            facts = b"facts %s %d\nLinux\nHostile\nbash\n/tmp\n" % (nonce, os.getpid())
            write(8, facts + b":%sc\n/\n:%sv\n:%sx\n:%s 0\n".replace(b"%s", nonce))
        elif named is None:
            write(8, b":%s 0\n" % nonce)
        else:
            before, middle, after = (part.replace(b"%s", nonce).replace(b"%.s", nonce[:-1]) for part in FLOODS[named])
            write(8, before)
            write(8, middle * (SIZE // len(middle)))
            write(8, after)
        write(9, b":%s\n" % nonce)
        text = b""


def write(descriptor: int, data: bytes) -> None:
    """Write all of ``data``."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


if __name__ == "__main__":
    main()
