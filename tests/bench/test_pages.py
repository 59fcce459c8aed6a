"""Pages are measured of every list there is, with every filter; tenants beside one another."""

from __future__ import annotations

import pytest

from holdfast.operations.registry import OPERATIONS
from holdfast_bench import pages
from holdfast_bench.history import History
from holdfast_bench.pages import measure_pages, path_of, shown
from holdfast_bench.questions import PAGING, all_questions, list_operations, questions, questions_beside
from holdfast_bench.tenants import measure_tenants
from holdfast_bench.trial import Trial
from holdfast_bench.xmin import measure_xmin

HISTORY = History(tasks=1_000, queued=1_000, nodes=9, task_id=1, run_id=2, failed_id=3, effect_id=5)


def test_whatever_is_called_a_list_or_gives_a_next_page_is_measured() -> None:
    measured = {operation.name for operation in list_operations()}
    named = {operation.name for operation in OPERATIONS if operation.name.endswith((".list", ".names", ".groups"))}
    paged = {operation.name for operation in OPERATIONS if "next" in operation.answer.__annotations__}
    assert named | paged <= measured == set(questions(HISTORY))


@pytest.mark.parametrize("operation", list_operations(), ids=lambda operation: operation.name)
def test_every_filter_of_a_list_is_asked_for(operation) -> None:
    asked = questions(HISTORY)[operation.name]
    used = {field for one in asked for field in one}
    assert set(operation.request.__struct_fields__) - PAGING <= used
    assert len({shown(operation, one) for one in asked}) == len(asked)
    assert all("{" not in path_of(operation, one) for one in asked)


@pytest.mark.representative(one_in=4, family="crews")
async def test_each_list_is_asked_over_http_in_a_long_history(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "TASKS_QUICK", 2_000)
    monkeypatch.setattr(pages, "ASKED_QUICK", 2)
    found = await measure_pages(trial)

    assert found["lists"] == len(list_operations())
    assert found["questions"] == len([*all_questions(HISTORY), *questions_beside(HISTORY)])
    assert any(name.startswith("task.list") and name.endswith(" as few") for name in found["pages"])
    assert all(0 < page["p50"] <= page["p99"] <= found["p99_max_ms"] for page in found["pages"].values())


@pytest.mark.representative(one_in=4, family="crews")
async def test_the_first_tasks_of_a_tenant_start_beside_those_of_another(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast_bench.tenants.QUEUED_QUICK", 200)
    found = await measure_tenants(trial)

    assert (found["losses"], found["beside_ms"]["tasks"], found["queued"]) == (0, 20, 200)
    assert found["ratio"] > 0


@pytest.mark.representative(one_in=4, family="crews")
async def test_a_drain_under_an_old_snapshot_is_measured_beside_one_without(trial: Trial) -> None:
    found = await measure_xmin(trial)
    assert (found["losses"], found["doubles"], found["violations"]) == (0, 0, [])
    assert len(found["ratios"]) == trial.rounds and found["ratio"] > 0
