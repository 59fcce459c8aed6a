"""`holdfast dataset …` against a real database."""

from __future__ import annotations

import pytest
from tests.datasets.hands import completed, declared, orders, rows, staged

from holdfast.testing.factories import a_running_task


async def two_versions(harness):
    """Version 1 is current with a row, version 2 has two and one attempt that still writes to it."""
    engine = harness.engine
    for version, count in ((1, 1), (2, 2)):
        generation = await declared(engine, orders(version))
        lease = await a_running_task(harness)
        await harness.settle(lease, completed(await staged(engine, lease, generation, rows(*range(count)))))
    lease = await a_running_task(harness)
    await staged(engine, lease, generation, rows(9))
    return lease.task_id


def test_datasets_are_listed_with_their_versions(holdfast, seed):
    assert holdfast("dataset", "list", "-o", "json").json == []
    seed(two_versions)
    newest, first = holdfast("dataset", "list", "-o", "json").json
    assert (first["name"], first["version"], first["state"], first["rows"]) == ("orders", 1, "current", 1)
    assert (newest["state"], newest["rows"], newest["unfinished"]) == ("building", 2, 1)
    assert holdfast("dataset", "list").out.splitlines()[1].split("\t")[:4] == ["orders", "1", "current", "1"]
    assert holdfast("dataset", "list", "-o", "table").out.split()[:3] == ["DATASET", "VERSION", "STATE"]


def test_one_dataset_is_shown_with_its_commits(holdfast, seed):
    seed(two_versions)
    shown = holdfast("dataset", "show", "orders", "-o", "json").json
    assert [view["version"] for view in shown["generations"]] == [2, 1]
    assert [(one["version"], one["rows_added"]) for one in shown["commits"]] == [(2, 2), (1, 1)]
    assert "key\torder_id" in holdfast("dataset", "show", "orders").out
    ran = holdfast("dataset", "show", "odrers")
    assert (ran.code, "Did you mean orders?" in ran.err) == (3, True)


def test_a_cut_over_is_refused_while_builds_are_unfinished_unless_forced(holdfast, seed):
    seed(two_versions)
    ran = holdfast("dataset", "cutover", "orders", "--version", "2")
    assert (ran.code, "1 of its builds have not ended" in ran.err) == (5, True)
    assert holdfast("dataset", "cutover", "orders", "--version", "2", "--force").out == "orders\t2\tcurrent\n"
    assert holdfast("dataset", "cutover", "orders", "--version", "2").out == "orders\t2\talready current\n"


def test_a_rollback_asks_first_and_cancels_what_is_left(holdfast, seed):
    task_id = seed(two_versions)
    assert holdfast("dataset", "rollback", "orders", "--version", "2").code == 2
    ran = holdfast("dataset", "rollback", "orders", "--version", "2", "--yes", "--reason", "wrong")
    assert ran.out == "orders\t2\trolled back\n"
    assert holdfast("task", "show", task_id, "-o", "json").json["cancel_at"] is not None
    newest = holdfast("dataset", "list", "-o", "json").json[0]
    assert (newest["state"], newest["reason"]) == ("dropped", "wrong")


def test_going_back_and_dropping(holdfast, seed):
    seed(two_versions)
    holdfast("dataset", "cutover", "orders", "--version", "2", "--force")
    ran = holdfast("dataset", "rollback", "orders", "--version", "2", "--keep", "--yes", "-o", "json")
    assert ran.json["done"] == "rolled back, version 1 is current"
    assert holdfast("dataset", "drop", "orders", "--version", "2", "--yes").out == "orders\t2\tdropped\n"
    assert [row["state"] for row in holdfast("dataset", "list", "-o", "json").json] == ["dropped", "current"]


@pytest.mark.parametrize("verb", ["cutover", "rollback", "drop"])
def test_what_is_not_there_is_not_found(holdfast, seed, verb):
    yes = () if verb == "cutover" else ("--yes",)
    assert holdfast("dataset", verb, "orders", "--version", "1", *yes).code == 3
    seed(two_versions)
    assert holdfast("dataset", verb, "orders", "--version", "9", *yes).code == 3
    assert holdfast("dataset", verb, "orders", *yes).code == 2
