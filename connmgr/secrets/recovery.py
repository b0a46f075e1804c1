"""Recovery keys: the words, in one or several shares, by which somebody gets back in who has lost a passphrase.

A recovery key is one more key that wraps a user's private key, beside the one of the passphrase. So it covers all that
was and will be sealed to this user, and a change of either key leaves the other as it is. The words are those of
SLIP-0039: a checksum finds a mistyped share, and each share says how many are needed and which belong together.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING

from connmgr.contract.vault import MAX_SHARES
from connmgr.errors import InvalidRequest, WrongShares

if TYPE_CHECKING:
    from shamir_mnemonic import Share

_SECRET_BYTES = 16
"""128 bits, the strength of the key pairs; 20 words a share."""

_PERSON = b"connmgr.recovery"


@dataclass(frozen=True)
class RecoveryWords:
    """A recovery key as words: each share is a line of them, and ``threshold`` shares are the key."""

    id: str
    """Four hexadecimal digits that are in the first words of each share; no secret."""
    threshold: int
    shares: Sequence[str] = field(repr=False)
    wrapping: bytes = field(repr=False)
    """The key that wraps the private key of the user, 32 bytes."""


def new_words(threshold: int, shares: int) -> RecoveryWords:
    """Make a recovery key of ``shares``, ``threshold`` of which are needed.

    :raises InvalidRequest: there is no such key.
    """
    from shamir_mnemonic import Share, generate_mnemonics

    if not 1 <= threshold <= shares <= MAX_SHARES or (threshold == 1) is not (shares == 1):
        raise InvalidRequest(
            f"A recovery key is a single share, or up to {MAX_SHARES} shares of which at least 2 are needed."
        )
    secret = os.urandom(_SECRET_BYTES)
    # SLIP-39 with one group: shares of one threshold, which other programs can join too.
    [lines] = generate_mnemonics(1, [(threshold, shares)], secret)
    return RecoveryWords(_id(Share.from_mnemonic(lines[0])), threshold, tuple(lines), _wrapping(secret))


def read_words(shares: Sequence[str]) -> RecoveryWords:
    """Return the recovery key of enough ``shares``, in any order and case; further shares must fit, too.

    :raises WrongShares: a share was mistyped, they do not belong together, or there are too few. ``details["shares"]``
        are the places of the wrong ones, from 1; ``details["missing"]`` is the number of shares that are missing. The
        message has none of their words.
    """
    lines = [" ".join(share.lower().split()) for share in shares]
    read = [_share(place, line) for place, line in enumerate(lines, 1)]
    # What most of them are decides, so that one stranger is found among them.
    sets = [words.group_parameters() for words in read]
    _refuse(
        {place for place, words in enumerate(sets, 1) if words != max(sets, key=sets.count)}, "of another recovery key"
    )
    _refuse({place for place, words in enumerate(read, 1) if words in read[: place - 1]}, "there twice")
    id, threshold = _id(read[0]), read[0].member_threshold
    if read[0].group_count != 1:
        raise WrongShares("These words are shares of another program: connmgr makes no groups of shares.", shares=[])
    if missing := max(0, threshold - len(read)):
        raise WrongShares(
            f"Recovery key {id} needs {threshold} shares: {missing} more.", shares=[], missing=missing, recovery=id
        )
    secret = _combined(lines[:threshold])
    # With one that is not needed in place of one that is, the secret must be the same.
    others = {place: [*lines[: threshold - 1], lines[place - 1]] for place in range(threshold + 1, len(lines) + 1)}
    # A share has a checksum of 30 bits, which anybody can compute: a forged one is found only by what it yields.
    unfit = {place for place, some in others.items() if _combined(some) != secret}
    if secret is None or unfit:
        raise WrongShares(
            "Each share's checksum is right, but the shares do not belong together: at least one is forged.",
            shares=[] if secret is None else sorted(unfit),
        )
    return RecoveryWords(id, threshold, tuple(lines), _wrapping(secret))


def _share(place: int, line: str) -> Share:
    from shamir_mnemonic import MnemonicError, Share
    from shamir_mnemonic.wordlist import WORD_INDEX_MAP

    words = line.split()
    unknown = [number for number, word in enumerate(words, 1) if word not in WORD_INDEX_MAP]
    if unknown:
        which = f"word {unknown[0]} is" if len(unknown) == 1 else f"words {', '.join(map(str, unknown))} are"
        raise WrongShares(f"Share {place} is mistyped: {which} not in the word list.", shares=[place])
    try:
        return Share.from_mnemonic(line)
    except MnemonicError as error:
        reason = f"it has {len(words)} words, and its checksum does not fit"
        raise WrongShares(f"Share {place} is mistyped or incomplete: {reason}.", shares=[place]) from error


def _refuse(places: Collection[int], why: str) -> None:
    if places:
        which = ", ".join(map(str, sorted(places)))
        raise WrongShares(f"Share{'s' if len(places) > 1 else ''} {which}: {why}.", shares=sorted(places))


def _combined(lines: Sequence[str]) -> bytes | None:
    """Return the secret of just enough shares, or None if they do not fit together."""
    from shamir_mnemonic import MnemonicError, combine_mnemonics

    try:
        return bytes(combine_mnemonics(lines))
    except MnemonicError:
        return None


def _id(share: Share) -> str:
    return f"{share.identifier:04x}"


def _wrapping(secret: bytes) -> bytes:
    return blake2b(key=secret, person=_PERSON, digest_size=32).digest()
