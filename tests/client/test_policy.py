"""Policies, weakest to strongest: settings, action, task."""

from __future__ import annotations

import pytest

import holdfast as hf
from holdfast.client.client import Client

app = hf.App("layers")


@app.action
async def plain() -> None: ...


@app.action(max_retries=2)
async def patient() -> None: ...


@pytest.mark.parametrize(
    ("asked", "max_retries"),
    [(plain, 7), (patient, 2), (patient.options(max_retries=1), 1), (plain.options(max_attempts=5), 4)],
)
async def test_a_task_keeps_the_strongest_budget_that_was_given(holdfast_url, engine, asked, max_retries):
    settings = hf.Settings.load({"HOLDFAST_URL": holdfast_url, "HOLDFAST_MAX_RETRIES": "7"})
    async with Client(settings, app.actions) as client:
        task = await client.enqueue(asked)
    stored = await engine.database.fetchval("select max_retries from holdfast.tasks where task_id = $1", task.task_id)
    assert stored == max_retries


def test_an_unknown_retry_setting_is_refused_where_it_is_written():
    with pytest.raises(hf.Invalid, match="backof"):
        hf.App("typo").action(name="late", retry={"base_backof_secs": 1})(lambda: None)
