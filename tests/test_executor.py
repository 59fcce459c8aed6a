"""What may be an app's executor and clock, and what is refused where it is written."""

from __future__ import annotations

import gc
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.codec.clock import follow, machine_now, unfollow
from holdfast.errors import Invalid

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


class Good:
    async def execute(self, attempt: hf.Attempt) -> object:
        return await attempt.call()


class Plain:
    def execute(self, attempt: hf.Attempt) -> object:
        return attempt


class Short:
    async def execute(self) -> object: ...


@pytest.mark.parametrize("given", [object(), Good, Plain(), Short(), lambda attempt: attempt, "traced"])
def test_what_could_run_no_attempt_is_refused(given):
    with pytest.raises(Invalid, match="async def execute") as refused:
        hf.App("shop", executor=given)
    assert refused.value.code == "invalid_executor"


def test_an_executor_is_there_for_type_checkers_too():
    one: hf.Executor = Good()
    assert hf.App("shop", executor=one).actions == {}


def test_actions_of_packs_have_none():
    app = hf.App("store", executor=Good())
    app.include(hf.load_pack(EXAMPLES / "packs" / "shop"))

    @app.action
    async def own() -> None: ...

    assert [name for name, action in app.actions.items() if action.executor is not None] == ["store.own"]


class Told:
    """A clock that answers what it was told to."""

    def __init__(self, answer) -> None:
        self._answer = answer

    def now(self):
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


class Awaited:
    async def now(self) -> datetime:
        return datetime.now(UTC)


@pytest.mark.parametrize("given", [object(), Awaited(), "noon"])
def test_what_tells_no_time_is_refused(given):
    with pytest.raises(Invalid) as refused:
        hf.App("shop", clock=given)
    assert refused.value.code == "invalid_clock"


def now_by(clock) -> datetime:
    app = hf.App("shop", clock=clock)

    @app.action
    async def look() -> None: ...

    return look.now()


def test_a_clock_may_answer_in_any_time_zone():
    noon = datetime(2030, 1, 2, 12, tzinfo=timezone(timedelta(hours=5)))
    one: hf.Clock = Told(noon)
    assert now_by(one) == noon


@pytest.mark.parametrize("answer", [datetime(2030, 1, 2), None, 1893456000.0], ids=repr)
def test_a_time_without_a_time_zone_is_refused_when_it_is_told(answer):
    with pytest.raises(Invalid, match="time zone") as refused:
        now_by(Told(answer))
    assert refused.value.code == "invalid_clock"


def test_without_a_clock_it_is_the_machines():
    before = datetime.now(UTC)
    assert before <= now_by(None) <= datetime.now(UTC)


def test_the_machines_time_goes_by_a_clock_only_for_as_long_as_that_is_there():
    first, second = (Told(datetime(year, 1, 1, tzinfo=UTC)) for year in (2030, 2031))
    follow(first)
    follow(second)
    unfollow(first)
    assert machine_now().year == 2031
    del second
    gc.collect()
    assert abs(machine_now() - datetime.now(UTC)) < timedelta(minutes=1)
