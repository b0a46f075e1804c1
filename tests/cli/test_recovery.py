"""Recovery keys from the command line: made, used after the passphrase is lost, rotated and revoked."""

from __future__ import annotations

from tests.cli.program import CommandLine, finish

PASSPHRASE = "four words or more"
OTHER = "four other words or more"


def test_a_lost_passphrase_is_set_anew_by_three_of_five_shares(own_connmgr: CommandLine) -> None:
    connmgr = own_connmgr
    connmgr("vault", "user", "add", "alice", stdin=f"{PASSPHRASE}\n")
    connmgr("--unlock", "alice", "add", "ssh", "web", "host=w", "--secret", "password", stdin=f"{PASSPHRASE}\nsecret\n")
    assert "No user is unlocked" in connmgr("vault", "recovery", "create", code=2).errors
    connmgr("vault", "recovery", "create", "alice", "--shares", "5", stdin=f"{PASSPHRASE}\n", code=2)
    made = connmgr("vault", "recovery", "create", "alice", "--shares", "3/5", stdin=f"{PASSPHRASE}\n")
    shares = made.output.splitlines()
    assert [len(share.split()) for share in shares] == [20] * 5
    assert "any 3 of them" in made.errors
    assert not any(share in made.errors for share in shares)
    [known] = connmgr("vault", "recovery", "ls", "--json").json
    id = known["recovery"]
    assert (known["user"], known["shares"], known["threshold"], known["used"]) == ("alice", 5, 3, None)

    # A slip in the second share is found before a passphrase is asked for.
    terminal = connmgr.on_terminal("vault", "recovery", "use")
    slip = " ".join(["slip", *shares[1].split()[1:]])
    for prompt, entered in [
        ("share 1: ", shares[4]),
        ("share 2: ", slip),
        ("Share 2 is mistyped: word 1 .*share 2: ", shares[1]),
        ("share 3: ", shares[0]),
        ("New passphrase of alice: ", OTHER),
        ("again: ", OTHER),
    ]:
        terminal.expect(prompt)
        terminal.sendline(entered)
    code, shown = finish(terminal)
    assert code == 0, shown
    assert not any(share in shown for share in (*shares, slip, OTHER))
    assert f"recovery rotate {id}" in shown

    connmgr("vault", "unlock", "alice", stdin=f"{PASSPHRASE}\n", code=4)
    told = connmgr("vault", "unlock", "alice", stdin=f"{OTHER}\n").errors
    assert f"Recovery key {id} set a new passphrase of alice" in told
    sealed = connmgr("info", "web", "--json").json["rawData"]["password"]
    import json

    assert connmgr("decrypt", stdin=json.dumps(sealed)).output == "secret\n"
    used = [one for one in connmgr("audit", "--action", "vault.recovery.use", "--json").json if "setsPassphrase" in one]
    assert [(one["recovery"], one["user"]) for one in used if one["setsPassphrase"]] == [(id, "alice")]

    rotated = connmgr("vault", "recovery", "rotate", id, stdin=f"{OTHER}\n").output.splitlines()
    refused = connmgr("vault", "recovery", "use", stdin="\n".join([*shares[:3], PASSPHRASE, ""]), code=1).errors
    assert "rotated or revoked" in refused
    assert "set a new passphrase" not in connmgr("vault", "unlock", "alice", stdin=f"{OTHER}\n").errors
    connmgr("vault", "recovery", "use", stdin="\n".join([*rotated[2:], PASSPHRASE, ""]))
    connmgr("vault", "unlock", "alice", stdin=f"{PASSPHRASE}\n")
    [known] = connmgr("vault", "recovery", "ls", "--json").json
    connmgr("vault", "recovery", "revoke", known["recovery"])
    assert connmgr("vault", "recovery", "ls").output == ""
