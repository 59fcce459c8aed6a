"""What a campaign asks at every pass stays cheap beside a group of 100,000 letters, whatever the planner believes."""

from __future__ import annotations

import pytest
from tests.store.test_plans import explain


@pytest.mark.parametrize("statement", ["next_campaign_letters", "campaign_left", "group_letters"])
async def test_letters_are_asked_one_by_one_along_their_index(engine, statement):
    """Joined, each would be compared with all that were released, or all runs be read before the first is given."""
    async with engine.database.session() as session:
        nodes = list((await explain(session, statement)).walk())
    assert not [node for node in nodes if node.get("Join Type") == "Anti"]
    assert {node["Index Name"] for node in nodes if node.get("Alias") == "d"} == {"dead_letter_waiting"}
    filters = [node.get("Filter", "") for node in nodes if node.get("Relation Name") == "dead_letter"]
    assert any("SubPlan" in text for text in filters) and not any("hashed" in text for text in filters)


async def test_what_came_back_is_noted_where_it_lies(engine):
    """Found by its key, each letter that is out could be compared with all the others."""
    async with engine.database.session() as session:
        nodes = list((await explain(session, "collect_campaign")).walk())
    assert "Tid Scan" in [node["Node Type"] for node in nodes if node.get("Alias", "").startswith("m_")]
