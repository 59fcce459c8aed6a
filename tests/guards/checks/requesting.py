"""What guards requests under idempotency keys: each is taken once, and its answer is its own and stays."""

from __future__ import annotations

from tests.guards.checks.stage import OTHER_TENANT_ID, Stage, another_tenant, check

from holdfast.engine.idempotency import IdempotentRequest, ReplayedResponse


async def _taken(stage: Stage, once: IdempotentRequest, answer: str | None = None) -> bytes | None:
    """Take a key, and keep an answer if there is one; gives what was answered before."""
    async with stage.engine.database.transaction() as session:
        try:
            await once.begin(session)
        except ReplayedResponse as before:
            return before.answer
        if answer is not None:
            await once.keep(session, answer)
    return None


@check
async def a_key_is_taken_once(stage: Stage) -> None:
    once = IdempotentRequest(tenant_id=1, key="k", digest=b"a")
    assert await _taken(stage, once, "first") is None
    assert await _taken(stage, once, "second") == b'"first"'


@check
async def an_answer_is_kept_under_its_own_key(stage: Stage) -> None:
    await another_tenant(stage)
    once = IdempotentRequest(tenant_id=1, key="k", digest=b"a")
    others = [
        IdempotentRequest(tenant_id=1, key="l", digest=b"a"),
        IdempotentRequest(tenant_id=OTHER_TENANT_ID, key="k", digest=b"a"),
    ]
    for other in (once, *others):
        await _taken(stage, other)
    async with stage.engine.database.transaction() as session:
        await IdempotentRequest(tenant_id=1, key="k", digest=b"b").keep(session, "of another request")
    await _taken(stage, once, "mine")
    assert [await _taken(stage, one) for one in (once, *others)] == [b'"mine"', None, None]


@check
async def an_answer_that_was_given_stays(stage: Stage) -> None:
    once = IdempotentRequest(tenant_id=1, key="k", digest=b"a")
    await _taken(stage, once, "first")
    async with stage.engine.database.transaction() as session:
        await once.keep(session, "second")
    assert await _taken(stage, once) == b'"first"'
