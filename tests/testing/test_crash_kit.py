"""The crash kit tells safe actions from unsafe ones, and says where."""

from __future__ import annotations

import sys

import pytest

import holdfast as hf
from holdfast.errors import Invalid
from holdfast.testing.crash_kit import crash_test, crash_test_flow

HERE = sys.modules[__name__]


@pytest.fixture
def app():
    return hf.App("shop")


def bill(order: int) -> None:
    """Something an action calls plainly."""


async def send(order: int, *, idempotency_key: str) -> dict:
    return {"id": order}


def points(report):
    return [point.where for point in report.points]


@pytest.mark.slow("it crashes an action at every step; test_failures_of_its_own_are_retried_as_ever is fast")
async def test_an_action_that_does_everything_under_governance_is_safe(app):
    @app.action
    async def mail(ctx: hf.Context, order: int) -> dict:
        doubled = await ctx.step("double", lambda x: 2 * x, order)
        return await ctx.effect("smtp.send", send, doubled, key=f"receipt:{order}")

    report = await crash_test(app, mail, {"order": 7})
    assert points(report) == [
        "after the step double ran, before it is stored",
        "after the step double",
        "before the gate of smtp.send (receipt:7)",
        "after the gate of smtp.send (receipt:7), before it is sent",
        "after sending smtp.send (receipt:7), before its receipt is stored",
        "after the receipt of smtp.send (receipt:7)",
        "before the completion of shop.mail",
    ]
    assert [(point.state, point.attempts) for point in report.points] == [("completed", 2)] * 7
    assert [point.resent for point in report.points if point.resent] == [("smtp.send (receipt:7)",)]
    assert [point.repeated for point in report.points if point.repeated] == [("step double",)]
    report.assert_safe()
    assert "shop.mail is safe to retry" in str(report) and "must honour idempotency keys" in str(report)


class Boxed:
    async def execute(self, attempt):
        await attempt.context.effect("box", send, 1, key="box")
        return await attempt.call()


@pytest.mark.representative(one_in=2)
@pytest.mark.parametrize("is_plain", [False, True])
async def test_what_an_executor_does_is_crashed_too(is_plain):
    app = hf.App("shop", executor=Boxed())

    @app.action(name="mail")
    async def mail(ctx: hf.Context) -> dict:
        return await ctx.effect("smtp.send", send, 1, key="k")

    @app.action(name="mail_plainly")
    def mail_plainly(ctx: hf.Context) -> dict:
        return ctx.effect("smtp.send", send, 1, key="k")

    report = await crash_test(app, mail_plainly if is_plain else mail)
    assert [where for where in points(report) if where.startswith("after the receipt")] == [
        "after the receipt of box (box)",
        "after the receipt of smtp.send (k)",
    ]
    assert {(point.state, point.attempts) for point in report.points} == {("completed", 2)}
    report.assert_safe()


@pytest.mark.slow("it crashes an action at every step; test_failures_of_its_own_are_retried_as_ever is fast")
async def test_plain_code_is_crashed_just_as_well(app):
    @app.action(isolation="process")
    def mail(ctx: hf.Context, order: int) -> dict:
        ctx.step("double", lambda x: 2 * x, order)
        return ctx.effect("smtp.send", send, order)

    report = await crash_test(app, "shop.mail", {"order": 7})
    assert len(report.points) == 7 and report.is_safe


@pytest.mark.slow("it crashes an action at every step; test_failures_of_its_own_are_retried_as_ever is fast")
async def test_an_effect_that_takes_no_key_is_not_safe(app):
    sent = []

    @app.action
    async def mail(ctx: hf.Context, order: int) -> None:
        await ctx.effect("smtp.send", lambda order: sent.append(order), order, key="k")

    report = await crash_test(app, mail, {"order": 7})
    [bad] = [point for point in report.points if not point.is_safe]
    assert bad.where == "after sending smtp.send (k), before its receipt is stored"
    assert bad.problems == ("smtp.send (k) was sent 2 times and takes no idempotency_key: done 2 times",)
    # Once in each round (one for each point, an undisturbed one, a last one without a crash), twice at that point.
    assert len(sent) == len(report.points) + 3
    with pytest.raises(AssertionError, match="NOT safe to retry"):
        report.assert_safe()


@pytest.mark.slow("it crashes an action at every step; test_failures_of_its_own_are_retried_as_ever is fast")
async def test_a_key_that_changes_with_the_attempt_is_not_safe(app):
    @app.action
    async def mail(ctx: hf.Context, order: int) -> None:
        await ctx.effect("smtp.send", send, order, key=f"{order}:{ctx.attempt}")

    report = await crash_test(app, mail, {"order": 7})
    assert not report.is_safe
    assert "smtp.send was sent under 2 keys, undisturbed under 1" in str(report)


async def test_a_watched_call_that_repeats_is_not_safe(app):
    @app.action
    async def charge(ctx: hf.Context, order: int) -> None:
        HERE.bill(order)
        await ctx.step("noted", lambda: None)

    report = await crash_test(app, charge, {"order": 7}, watch=[(HERE, "bill")])
    assert all(any("bill was called 2 times" in problem for problem in point.problems) for point in report.points)
    assert len(report.points) == 3


@pytest.mark.slow("it crashes an action at every step; test_failures_of_its_own_are_retried_as_ever is fast")
async def test_a_watched_call_inside_a_step_repeats_only_before_it_is_kept(app):
    @app.action
    async def charge(ctx: hf.Context, order: int) -> None:
        await ctx.step("bill", lambda order: HERE.bill(order), order)

    report = await crash_test(app, charge, {"order": 7}, watch=[f"{__name__}.bill"])
    assert [point.is_safe for point in report.points] == [False, True, True]


async def test_what_cannot_be_watched_is_refused(app):
    @app.action
    async def charge() -> None: ...

    with pytest.raises(Invalid, match="cannot be watched"):
        await crash_test(app, charge, watch=["no.such.module"])
    with pytest.raises(Invalid, match="no 'nothing'"):
        await crash_test(app, charge, watch=["holdfast.errors.nothing"])


async def test_an_action_that_may_not_be_lost_is_not_safe(app):
    @app.action(max_losses=0)
    async def charge() -> None: ...

    report = await crash_test(app, charge)
    assert [point.problems for point in report.points] == [("it ended as failed, undisturbed as completed",)]


@pytest.mark.slow("it crashes an action at every step; test_failures_of_its_own_are_retried_as_ever is fast")
async def test_no_except_or_finally_runs_at_a_crash(app):
    cleaned = []

    @app.action
    async def mail(ctx: hf.Context) -> None:
        try:
            await ctx.effect("smtp.send", send, 1)
        except BaseException:
            HERE.bill(1)
            raise
        finally:
            cleaned.append(ctx.attempt)

    report = await crash_test(app, mail, watch=[(HERE, "bill")])
    assert report.is_safe


async def test_failures_of_its_own_are_retried_as_ever(app):
    @app.action(max_retries=2)
    async def flaky(ctx: hf.Context) -> int:
        number = await ctx.step("draw", lambda: 4)
        if ctx.attempt < 2:
            raise ConnectionError("connection reset")
        return number

    report = await crash_test(app, flaky)
    assert report.is_safe and report.state == "completed"


async def test_each_round_is_prepared(app):
    urls = []

    @app.action
    async def nothing() -> None: ...

    report = await crash_test(app, nothing, prepare=urls.append)
    assert len(report.points) == 1 and len(set(urls)) == 3


@pytest.mark.slow("it crashes an action at every step; test_failures_of_its_own_are_retried_as_ever is fast")
async def test_a_flow_is_crashed_at_every_node(app):
    @app.action
    async def extract(ctx: hf.Context) -> list:
        return await ctx.step("read", lambda: [1, 2])

    @app.action
    async def publish(ctx: hf.Context, rows: list) -> dict:
        return await ctx.effect("web.publish", send, rows[0])

    @app.flow
    def nightly():
        publish(rows=extract())

    report = await crash_test_flow(app, nightly)
    assert [point.state for point in report.points] == ["completed"] * 8
    assert report.is_safe and report.resent == ("web.publish (#1)",)
