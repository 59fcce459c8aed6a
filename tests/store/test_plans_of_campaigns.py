"""What a campaign asks at every pass stays cheap beside a group of 100,000 letters, whatever the planner believes."""

from __future__ import annotations

import pytest
from tests.store.test_plans import explain

LETTERS = """
    insert into holdfast.queue (tenant_id, name) values (1, 'default');
    insert into holdfast.lane (tenant_id, queue_id, action) values (1, 1, 'shop.charge');
    insert into holdfast.policy (tenant_id, digest, max_retries, max_losses, content) values (1, '', 3, 3, '{}');
    insert into holdfast.ended (
      task_id, tenant_id, lane_id, policy_id, attempt, priority, max_retries, max_losses, retries, losses, generation,
      state, created_at, ended_at, reason, actor, has_letter
    )
    select n, 1, 1, 1, 1, 5, 3, 3, 3, 0, 1, 'f', now(), now(), 'broken', '', true from generate_series(1, 20000) n;
    insert into holdfast.dead_letter (task_id, tenant_id, lane_id, attempts, generation, source_id, fingerprint)
    select n, 1, 1, 1, 1, n::text, 'alike' from generate_series(1, 20000) n
"""
STATISTICS = {
    "analysed_while_empty": ("analyze", LETTERS),
    "analysed_while_all_rest": (LETTERS, "analyze"),
    "never_analysed": (LETTERS,),
}
KEYS = ("dead_letter_id = ", "task_id = ", "run_id = ")
RESTING = ("dead_letter", "ended")
RELEASING = [
    "take_campaign_dead_letters",
    "request_dead_letter_retries",
    "revive_tasks",
    "mark_dispatched",
    "request_and_dispatch_dead_letters",
    "lock_dead_letters_of_runs",
]


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("statistics", STATISTICS)
async def test_what_releases_letters_finds_them_and_their_tasks_by_key(engine, statistics):
    """The planner last saw none of them retry, or none at all: no reason to go through all that rest."""
    async with engine.database.session() as session:
        for script in STATISTICS[statistics]:
            await session.execute(script)
        found = {name: [*(await explain(session, name)).walk()] for name in RELEASING}
    for name, nodes in found.items():
        scans = [node for node in nodes if is_of_rest(node)]
        assert scans and all(any(key in node.get("Index Cond", "") for key in KEYS) for node in scans), name


def is_of_rest(node):
    """Whether a node of a plan looks for letters, or for tasks that ended."""
    finds = node["Node Type"].endswith("Scan") and node["Node Type"] != "Bitmap Heap Scan"
    return finds and node.get("Index Name", node.get("Relation Name", "")).startswith(RESTING)


@pytest.mark.parametrize("statement", ["next_campaign_dead_letters", "dead_letters_of_group"])
async def test_letters_are_asked_one_by_one_along_their_index(engine, statement):
    """Joined, each would be compared with all that were released, or all runs be read before the first is given."""
    async with engine.database.session() as session:
        nodes = list((await explain(session, statement)).walk())
    assert not [node for node in nodes if node.get("Join Type") == "Anti"]
    assert {node["Index Name"] for node in nodes if node.get("Alias") == "d"} == {"dead_letter_redrivable"}
    filters = [node.get("Filter", "") for node in nodes]
    assert any("SubPlan" in text for text in filters) and not any("hashed" in text for text in filters)


async def test_what_came_back_is_noted_where_it_lies(engine):
    """Found by its key, each letter that is out could be compared with all the others."""
    async with engine.database.session() as session:
        nodes = list((await explain(session, "collect_campaign")).walk())
    assert "Tid Scan" in [node["Node Type"] for node in nodes if node.get("Alias", "").startswith("m_")]
