"""No guard is there for nothing: take one away and a check fails.

The statements are changed on their way to the server, in this process alone. A mutant that the server refuses to run
proves nothing, so it counts as an error, not as killed.
"""

from __future__ import annotations

import re
from contextlib import contextmanager

import pytest
from tests.guards.inventory import CHANGES, unlisted
from tests.guards.mutants import CONSTRAINTS, LIVE_INVALID_ROWS, MUTANTS, REDRIVABLE_DEAD_LETTERS
from tests.guards.survival import survives

from holdfast.core.tasks import classify, retry
from holdfast.store.database import Session
from holdfast.store.migrate import known
from holdfast.store.statements import sql, statements, statements_in

READ_ONLY_FILES = {
    *(f"queries/{name}.sql" for name in ("tasks", "explain", "checkup")),
    *(one.file for one in statements_in("invariants")),
}
NO_GUARD = {
    "collect_campaign": (
        "when d.state = 'resolved' and d.disposition",
        "when (e.state = 'f' or k.state = 'f') and n.fingerprint = c.fingerprint then 'returned'",
        "when e.state = 'f' or k.state = 'f' or r.state = 'f' then 'failed'",
        "when e.state = 'x' or r.state = 'x' then 'canceled'",
        "and o.state = 'c' then 'succeeded'",
        "when r.state = 'c' and o.state in ('k', 'u') then 'dropped'",
        "when r.state = 'c' and o.state = 'f' then 'failed'",
        "when r.state = 'c' then 'succeeded'",
        "d.state = 'retrying' and d.campaign_id = m.campaign_id as is_out",
    ),
    "lock_campaign": ("q.paused_at is null\n  ) as has_open_queue",),
    "lock_dead_letters": (
        "when e.state = 'f' then 'failed'",
        "when e.state = 'x' then 'canceled'",
        "and a.state = 'c' and a.generation > locked.generation",
    ),
    "lock_run_dead_letters": (
        "and a.state = 'c' and a.generation > locked.generation",
        "p.items_first + p.items - 1 and n.state = 'c'",
    ),
    "park_abandoned_dead_letters": ("coalesce(r.state = 'c', false) as is_over",),
    "take_campaign_dead_letters": ("case when d.state = 'ignored' then 0",),
    "request_dead_letter_retries": (
        "case when d.state = 'ignored' then 0",
        "case when d.state = 'ignored' then null else d.dispatched_at",
        "case when d.state = 'ignored' then null else d.backoff_seconds",
    ),
    "settle_incomplete": ("where state = 'q') as lanes",),
    "open_effect": ("where e.tenant_id = $4 and e.key = $5\n)", "where e.tenant_id = $4 and e.key = $5 and exists"),
    "advance_runs": (
        "case state when 'c' then 'execution.completed'",
        "from counted\n    where state <> 'o'",
        "from counted\nwhere state <> 'o'",
    ),
    "lock_run": ("r.paused_at is not null as is_paused",),
    "lock_runs": ("r.paused_at is not null as is_paused",),
    "settle_completed": ("r.paused_at is not null as is_paused",),
    "reopen_run": (
        "from holdfast.run r\n  where r.run_id = $1 and r.state in ('o', 'c', 'f') and r.generation = $7\n  union",
        "from holdfast.run r\n  where r.run_id = $1 and r.state in ('o', 'c', 'f') and r.generation = $7\n)",
    ),
    "lock_queue": ("q.paused_at is not null as paused",),
}
"""Guard-like words that route or report, and decide nothing about whether a row may change."""


def without_guard(mutant) -> str:
    text = sql(mutant.statement)
    assert mutant.guard in text, f"{mutant.name} is not there any more"
    assert text.count(mutant.guard) == 1, f"{mutant.name} is there {text.count(mutant.guard)} times"
    return text.replace(mutant.guard, mutant.replacement)


@contextmanager
def replaced(original: str, changed: str):
    fetch = Session.fetch

    async def fetch_changed(self, statement, *arguments):
        return await fetch(self, changed if statement == original else statement, *arguments)

    Session.fetch = fetch_changed
    try:
        yield
    finally:
        Session.fetch = fetch


@pytest.mark.breaks_invariants
@pytest.mark.representative(one_in=6)
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.killed_by], ids=lambda mutant: mutant.name)
async def test_a_check_fails_without_the_guard(mutant, stage):
    with replaced(sql(mutant.statement), without_guard(mutant)):
        assert not await survives(mutant.killed_by, stage), f"{mutant.name} survived {mutant.killed_by}"


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.redundant_because], ids=lambda mutant: mutant.name)
def test_a_second_guard_says_why_it_is_there(mutant):
    without_guard(mutant)
    assert not mutant.killed_by and len(mutant.redundant_because) > 20


def test_few_guards_are_second_ones():
    redundant = [mutant for mutant in MUTANTS if mutant.redundant_because]
    assert len(redundant) <= len(MUTANTS) / 5


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("constraint", CONSTRAINTS)
async def test_a_check_fails_without_the_constraint(constraint, stage):
    table, name = constraint.split(".")
    async with stage.engine.database.session() as session:
        await session.execute(f"alter table holdfast.{table} drop constraint {name}")
    assert not await survives(CONSTRAINTS[constraint], stage)


def how_is_made(what: str) -> str:
    """The statement of a migration that makes something."""
    script = next(one.script for one in known() if f"create {what}" in one.script)
    return script[script.index(f"create {what}") :].partition(";")[0]


def live_invalid_rows() -> str:
    """How the index is made that no live row may enter."""
    return how_is_made("index live_invalid_rows")


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("condition", LIVE_INVALID_ROWS)
async def test_a_check_fails_without_the_condition_of_a_sound_row(condition, stage):
    made = live_invalid_rows()
    assert made.count(condition) == 1
    async with stage.engine.database.session() as session:
        await session.execute(f"drop index holdfast.live_invalid_rows; {made.replace(condition, 'false')}")
    assert not await survives(LIVE_INVALID_ROWS[condition], stage)


def test_every_condition_of_a_sound_row_is_on_the_list():
    conditions = [part.strip() for part in re.split(r"\n  or ", live_invalid_rows().partition(" where")[2])]
    assert conditions == list(LIVE_INVALID_ROWS)


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("condition", REDRIVABLE_DEAD_LETTERS)
async def test_a_check_fails_without_the_condition_of_a_redrivable_dead_letter(condition, stage):
    made = how_is_made("view holdfast.redrivable_dead_letters")
    assert made.count(condition) == 1
    async with stage.engine.database.session() as session:
        await session.execute(made.replace("create view", "create or replace view").replace(condition, "true"))
    assert not await survives(REDRIVABLE_DEAD_LETTERS[condition], stage)


def test_every_condition_of_a_redrivable_dead_letter_is_on_the_list():
    conditions = re.split(r"\n  and ", how_is_made("view holdfast.redrivable_dead_letters").partition("\nwhere ")[2])
    assert conditions == list(REDRIVABLE_DEAD_LETTERS)


def _changing() -> list[str]:
    return [
        name
        for name, statement in statements().items()
        if statement.file not in READ_ONLY_FILES and CHANGES.search(statement.text)
    ]


@pytest.mark.parametrize("name", _changing())
def test_every_guard_is_on_the_list(name):
    """What is left of a statement without its listed guards, assignments and column lists holds no other guard."""
    listed = [mutant.guard for mutant in MUTANTS if mutant.statement == name]
    left, text = unlisted(sql(name), (*listed, *NO_GUARD.get(name, ())))
    assert not left, f"{name} has guards without a mutant: {left}\n{text}"


CORE_MUTANTS = {
    "a spent budget does not end the task": (
        retry._Budget,
        "is_spent",
        property(lambda _self: False),
        "a_spent_budget_ends_the_task",
    ),
    "a loss draws on the budget of retries": (
        retry._Budget,
        "of",
        classmethod(
            lambda cls, policy, _outcome, *, retries, losses: cls(
                spent=retries, limit=policy.max_retries, is_loss=False
            )
        ),
        "losses_and_failures_have_budgets_of_their_own",
    ),
    "everything is worth a retry": (
        classify.Classification,
        "is_retriable",
        property(lambda _self: True),
        "what_cannot_get_better_is_not_retried",
    ),
    "a retry does not wait": (retry, "_delay_seconds", lambda *_a, **_k: 0.0, "a_retry_waits_for_its_backoff"),
    "a first loss waits": (retry, "_delay_seconds", lambda *_a, **_k: 30.0, "a_first_loss_is_retried_at_once"),
}


@pytest.mark.breaks_invariants
@pytest.mark.parametrize("name", CORE_MUTANTS)
async def test_a_check_fails_without_the_rule(name, stage, monkeypatch):
    holder, attribute, changed, killed_by = CORE_MUTANTS[name]
    if isinstance(changed, property) and hasattr(holder, "__slots__") and attribute in holder.__slots__:
        monkeypatch.setattr(retry, "classify", lambda *_a: _always_retriable())
    else:
        monkeypatch.setattr(holder, attribute, changed)
    assert not await survives(killed_by, stage)


def _always_retriable():
    return classify.Classification(is_retriable=True, reason="transient_error", rule="mutant")
