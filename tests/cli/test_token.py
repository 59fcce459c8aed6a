"""`holdfast token …` and `holdfast member …`."""

from __future__ import annotations

from tests.cli.conftest import invoke

from holdfast.core.identity.api_token import parse


def test_a_token_is_printed_once_and_alone_on_stdout(holdfast):
    ran = holdfast("token", "create", "ci", "--role", "operator", "--reason", "deploys")
    token = parse(ran.out.strip())
    assert token is not None and "shown only once" in ran.err and token.secret not in ran.err
    listed = holdfast("token", "list", "-o", "json")
    [row] = listed.json
    assert (row["token_id"], row["name"], row["role"], row["queues"]) == (token.token_id, "ci", "operator", None)
    assert token.secret not in listed.out + holdfast("token", "list").out + holdfast("audit", "list").out


def test_a_workers_token_can_be_limited_and_may_expire(holdfast):
    made = holdfast(
        "token", "create", "w", "--role", "worker", "--queues", "b, a", "--expires", "90d", "-o", "json"
    ).json
    assert made["queues"] == ["a", "b"] and made["expires_at"] and made["token"].startswith("hf_")


def test_revoke_ends_it_by_id_or_name(holdfast):
    made = [holdfast("token", "create", name, "--role", "viewer", "-o", "json").json for name in ("one", "two")]
    ids = [one["token_id"] for one in made]
    assert holdfast("token", "revoke", ids[0]).out == f"{ids[0]}\trevoked\n"
    assert holdfast("token", "revoke", "two", "-o", "json").json == {"token_id": ids[1], "state": "revoked"}
    assert holdfast("token", "list").err == "No tokens.\n"
    assert {row["revoked_by"] is not None for row in holdfast("token", "list", "--all", "-o", "json").json} == {True}
    assert holdfast("token", "revoke", "two").code == 3
    verbs = [row["verb"] for row in holdfast("audit", "list", "-o", "json").json]
    assert verbs == ["token.revoke"] * 2 + ["token.create"] * 2


def test_what_cannot_be_a_token_is_refused(holdfast, subtests):
    cases = [
        (["a b", "--role", "viewer"], 2),
        (["ci"], 2),
        (["ci", "--role", "root"], 2),
        (["ci", "--role", "viewer", "--queues", "mail"], 2),
        (["ci", "--role", "viewer", "--expires", "soon"], 2),
        (["taken", "--role", "viewer"], 5),
    ]
    for arguments, code in cases:
        with subtests.test(arguments=arguments, code=code):
            holdfast("token", "create", "taken", "--role", "viewer")
            assert holdfast("token", "create", *arguments).code == code


def test_members_are_added_listed_and_removed(holdfast):
    assert holdfast("member", "list").err.startswith("No members")
    added = holdfast(
        "member", "add", "--issuer", "google", "--hd", "corp.example", "--role", "viewer", "-o", "json"
    ).json
    assert (added["issuer"], added["domain"], added["role"]) == (
        "https://accounts.google.com",
        "corp.example",
        "viewer",
    )
    account = holdfast("member", "add", "--issuer", "google", "--subject", "7", "--role", "admin", "--name", "Anna")
    assert account.out == f"{int(added['member_id']) + 1}\t7\tadmin\n"
    assert [row["role"] for row in holdfast("member", "list", "-o", "json").json] == ["viewer", "admin"]
    assert holdfast("member", "remove", str(added["member_id"])).out == f"{added['member_id']}\tremoved\n"
    assert holdfast("member", "remove", str(added["member_id"])).code == 3
    assert holdfast("member", "add", "--issuer", "google", "--role", "viewer").code == 2
    assert holdfast("member", "add", "--issuer", "google", "--subject", "7", "--role", "viewer").code == 5


def test_a_server_on_a_network_says_what_it_lacks(holdfast_url):
    ran = invoke("server", "--host", "0.0.0.0", HOLDFAST_URL=holdfast_url)
    assert (ran.code, "no_authentication" in ran.err, "holdfast token create" in ran.err) == (2, True, True)
