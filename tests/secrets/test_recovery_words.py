"""The words of recovery keys: what is wrong with them, as far as they tell themselves."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from connmgr.errors import InvalidRequest, WrongShares
from connmgr.secrets.recovery import RecoveryWords, new_words, read_words


@pytest.fixture(scope="module")
def three_of_five() -> RecoveryWords:
    return new_words(3, 5)


def test_one_share_is_the_key() -> None:
    made = new_words(1, 1)
    [share] = made.shares
    assert len(share.split()) == 20
    assert read_words([f"  {share.upper()} \t"]) == RecoveryWords(made.id, 1, (share,), made.wrapping)


def test_any_three_of_five_in_any_order_are_the_key(three_of_five: RecoveryWords) -> None:
    some = [list(each) for each in combinations(three_of_five.shares, 3)]
    for shares in [*some, *map(list, permutations(some[0])), list(three_of_five.shares)]:
        assert read_words(shares).wrapping == three_of_five.wrapping


def test_too_few_say_how_many_are_missing(three_of_five: RecoveryWords) -> None:
    with pytest.raises(WrongShares, match="needs 3 shares: 1 more") as refusal:
        read_words(three_of_five.shares[:2])
    assert refusal.value.details == {"shares": [], "missing": 1, "recovery": three_of_five.id}


def mistyped(share: str, place: int, word: str) -> str:
    words = share.split()
    words[place - 1] = word
    return " ".join(words)


def test_a_typo_names_share_and_word_and_repeats_neither(three_of_five: RecoveryWords) -> None:
    one, two, three = three_of_five.shares[:3]
    with pytest.raises(WrongShares, match="Share 2 is mistyped: word 9 is not in the word list") as refusal:
        read_words([one, mistyped(two, 9, "hunter2"), three])
    assert refusal.value.details == {"shares": [2]}
    assert "hunter2" not in refusal.value.message
    other = "academic" if three.split()[11] != "academic" else "zero"
    for wrong in (mistyped(three, 12, other), " ".join(three.split()[:19]), f"{three} {other}"):
        with pytest.raises(WrongShares, match="Share 3 is mistyped or incomplete") as refusal:
            read_words([one, two, wrong])
        assert refusal.value.details == {"shares": [3]}
        assert not set(wrong.split()[4:]) & set(refusal.value.message.split())


@pytest.mark.parametrize("nothing", ["", "   ", "\n"])
def test_an_empty_share_is_a_wrong_one(nothing: str) -> None:
    with pytest.raises(WrongShares, match="Share 1"):
        read_words([nothing])


def test_a_share_of_another_key_is_named(three_of_five: RecoveryWords) -> None:
    stranger = new_words(3, 5).shares[0]
    one, two, three = three_of_five.shares[:3]
    with pytest.raises(WrongShares, match="Share 3: of another recovery key") as refusal:
        read_words([one, two, stranger])
    assert refusal.value.details == {"shares": [3]}
    with pytest.raises(WrongShares, match="Share 1: of another recovery key"):
        read_words([stranger, one, two, three])


def test_a_share_is_not_counted_twice(three_of_five: RecoveryWords) -> None:
    one, two = three_of_five.shares[:2]
    with pytest.raises(WrongShares, match="Share 3: there twice"):
        read_words([one, two, one])


def test_shares_that_are_forged_with_their_checksums_are_found(three_of_five: RecoveryWords) -> None:
    from dataclasses import replace

    from shamir_mnemonic import Share

    share = Share.from_mnemonic(three_of_five.shares[4])
    forged = replace(share, value=bytes(byte ^ 1 for byte in share.value)).mnemonic()
    with pytest.raises(WrongShares, match="at least one is forged"):
        read_words([*three_of_five.shares[:2], forged])
    with pytest.raises(WrongShares, match="at least one is forged") as refusal:
        read_words([*three_of_five.shares[:3], forged])
    assert refusal.value.details == {"shares": [4]}


@pytest.mark.parametrize(("threshold", "shares"), [(1, 2), (0, 1), (2, 1), (3, 17), (4, 3)])
def test_there_is_no_such_key(threshold: int, shares: int) -> None:
    with pytest.raises(InvalidRequest, match="single share"):
        new_words(threshold, shares)


def test_words_are_not_shown_by_accident(three_of_five: RecoveryWords) -> None:
    assert not set(three_of_five.shares[0].split()) & set(repr(three_of_five).split())
