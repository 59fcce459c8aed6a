"""`holdfast tenant …` against a real database, and commands that work for another tenant than the first."""

from __future__ import annotations

from holdfast.testing.factories import a_running_task, a_task


def test_a_tenant_is_made_listed_and_limited(holdfast):
    assert holdfast("tenant", "create", "acme", "--reason", "new customer").out == "acme\t2\t-\t-\n"
    changed = holdfast("tenant", "limit", "acme", "--max-running", "5", "-o", "json").json
    assert (changed["max_running"], changed["max_queued"]) == (5, None)
    assert holdfast("tenant", "limit", "acme", "--max-queued", "100").out == "acme\t2\t5\t100\n"
    assert holdfast("tenant", "limit", "acme", "--max-running", "none").out == "acme\t2\t-\t100\n"
    rows = holdfast("tenant", "list", "-o", "json").json
    assert [(row["name"], row["max_queued"], row["queued"]) for row in rows] == [("default", None, 0), ("acme", 100, 0)]


def test_two_who_limit_a_tenant_at_once_lose_nothing_of_each_other(holdfast_behind):
    """One waits for the other's lock; what it does not name is what the other made of it."""
    other = "update holdfast.tenant set max_running = 5 where name = 'default'"
    assert holdfast_behind(other, "tenant", "limit", "default", "--max-queued", "100").out == "default\t1\t5\t100\n"


def test_what_makes_no_sense_is_refused(holdfast, subtests):
    cases = [
        (("create", "default"), 5),
        (("create", "no spaces"), 2),
        (("limit", "default"), 2),
        (("limit", "default", "--max-running", "0"), 2),
        (("limit", "default", "--max-queued", "many"), 2),
        (("limit", "nobody", "--max-running", "1"), 3),
    ]
    for arguments, code in cases:
        with subtests.test(arguments=arguments, code=code):
            assert holdfast("tenant", *arguments).code == code


def test_an_unknown_tenant_is_said_at_once(holdfast):
    ran = holdfast("queue", "list", HOLDFAST_TENANT="acme")
    assert ran.code == 3 and "holdfast tenant create acme" in ran.err


def test_the_counts_are_those_of_each_tenant(holdfast, seed):
    seed(lambda harness: harness.enqueue_many(a_task(), [{}] * 3))
    assert holdfast("tenant", "create", "acme").code == 0
    rows = holdfast("tenant", "list", "-o", "json").json
    assert [row["queued"] for row in rows] == [3, 0]


def test_a_tenant_sees_and_drains_its_own_workers_only(holdfast, seed):
    worker_id = str(seed(a_running_task).worker_id)
    assert holdfast("tenant", "create", "acme").code == 0
    assert holdfast("worker", "list", "-o", "json", HOLDFAST_TENANT="acme").json == []
    assert holdfast("worker", "show", worker_id, HOLDFAST_TENANT="acme").code == 3
    assert holdfast("worker", "drain", worker_id, HOLDFAST_TENANT="acme").code == 3
    (row,) = holdfast("worker", "list", "-o", "json").json
    assert (row["worker_id"], row["state"]) == (worker_id, "active")


def test_with_the_databases_url_a_domain_is_given_to_a_tenant(holdfast):
    assert holdfast("tenant", "create", "acme").code == 0
    added = ("member", "add", "--issuer", "google", "--hd", "acme.example", "--role", "viewer")
    assert holdfast(*added, HOLDFAST_TENANT="acme").code == 0


def test_doctor_says_how_tenants_are_kept_apart(holdfast):
    found = {one["name"]: one for one in holdfast("doctor", "-o", "json").json}
    assert (found["tenants"]["level"], found["row security"]["level"]) == ("ok", "ok")
