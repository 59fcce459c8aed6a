"""A server that reaches its database through a pooler: workers elsewhere, walls between tenants, streams, long polls.

Scenarios of other folders once more. NOTIFY does not pass a pooler in transaction mode, so whoever waits is called by
way of the direct URL where there is one, and found by the poll where there is none.
"""

from __future__ import annotations

import pytest
from tests.server.conftest import call, ticks, worker  # noqa: F401
from tests.server.test_exchange import (  # noqa: F401
    test_an_answer_that_got_lost_is_given_again,
    test_an_exchange_settles_renews_and_claims_at_once,
)
from tests.server.test_tasks import (  # noqa: F401
    history,
    test_a_reader_resumes_behind_any_single_event,
    test_without_a_cursor_only_what_comes_is_told,
)
from tests.server.test_tenants import (  # noqa: F401
    test_a_tenant_that_a_request_names_decides_nothing,
    test_what_a_request_does_is_done_behind_the_wall,
)
from tests.server.test_waiting import calls, here, waiting  # noqa: F401
from tests.server.test_waiting import test_a_waiting_claim_is_answered_when_a_task_comes as answered_when_a_task_comes
from tests.server.test_workers import (  # noqa: F401
    test_a_completion_is_accepted_once_and_repeated_answers_as_before,
)
from tests.tenants.acme import acme, at_acme, theirs  # noqa: F401
from tests.tenants.test_strangers import test_a_worker_claims_of_its_own_tenant_only  # noqa: F401

from holdfast.core.tasks.retry import RetryPolicy
from holdfast.settings.settings import Settings, WorkerSettings
from holdfast.testing import factories as a


@pytest.fixture
def holdfast_settings():
    return Settings(env="local", port=0)


class TestCalledByTheDirectWay:
    @pytest.fixture
    def holdfast_settings(self, direct_url):
        """A poll that nobody lives to see."""
        return Settings(env="local", port=0, direct_url=direct_url, worker=WorkerSettings(poll_seconds=300))

    async def test_a_waiting_claim_is_answered(self, call, waiting, engine, eventually):  # noqa: F811
        await engine.catalog.declare(engine.tenant_id, a.ACTION, "default", RetryPolicy(), "1")
        [(claim, _)] = await waiting(1)

        async def is_called():
            # Again, because the first ring may come before anybody listens.
            await call.post("/api/v1/tasks", {"action": a.ACTION})
            return claim.done()

        await eventually(is_called)
        assert len(claim.result()["tasks"]) == 1


class TestFoundByThePoll:
    @pytest.fixture
    def holdfast_settings(self):
        return Settings(env="local", port=0, worker=WorkerSettings(poll_seconds=0.2))

    async def test_a_waiting_claim_is_answered(self, waiting, harness, engine):  # noqa: F811
        assert not engine.database.can_listen
        await answered_when_a_task_comes(waiting, harness)
