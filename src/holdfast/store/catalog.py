"""Interned names: ids of lanes and policies, cached for the life of a process.

Lanes and policies are immutable and never deleted, so a cached id is never wrong. Interning runs in its own short
transaction, never in the caller's: otherwise one long user transaction would block every first enqueue of a lane.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable

import msgspec

from holdfast.core.tasks.action_rules import ActionRules
from holdfast.core.tasks.retry import RetryPolicy
from holdfast.core.values.bounds import PRIORITY_DEFAULT
from holdfast.core.values.epoch import Epoch, epoch_of
from holdfast.errors import Invalid
from holdfast.store.database import Database, Session
from holdfast.store.flow_definitions import Flows
from holdfast.store.run_inputs import StartedRuns
from holdfast.store.sql.effects import effects as effects_sql
from holdfast.store.sql.maintenance import epoch as epoch_sql
from holdfast.store.sql.tasks import lanes as lanes_sql
from holdfast.store.tenant_allowance import TenantAllowance

log = logging.getLogger("holdfast.store")

DEFAULT_TENANT_ID = 1


class Lane(msgspec.Struct, frozen=True):
    """A lane with its names."""

    lane_id: int
    action: str
    queue: str
    tenant: str
    tenant_id: int = 0


class Catalog:
    """The interned names of one database, shared by everything in a process that uses it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.flows = Flows(database)
        self.started = StartedRuns()
        self.allowance = TenantAllowance(database)
        self._lane_ids: dict[tuple[int, str, str], int] = {}
        self._policy_ids: dict[tuple[int, RetryPolicy], int] = {}
        self._lanes: dict[int, Lane] = {}
        self._policies: dict[int, RetryPolicy] = {}
        self._unreadable: dict[int, Invalid] = {}
        self.guarded: set[int] = set()
        """Lanes whose action has a breaker: the outcomes of their attempts are counted. A lane too many only costs a
        statement."""
        self._installation = ""
        self._epochs: tuple[Epoch, ...] = ()
        self.forgotten = 0
        """How often `forget_names` was called, for caches elsewhere that store ids of names."""

    async def installation(self) -> str:
        """Return the id that distinguishes this database from every other."""
        if not self._installation:
            self._installation = str(await effects_sql.read_installation(self._database))
        return self._installation

    def forget_names(self) -> None:
        """Clear the cached ids of names: the server is another one, which may not have the newest names. Cached
        contents of ids stay, because no id is ever assigned twice, not even then."""
        self.forgotten += 1
        self._lane_ids.clear()
        self._policy_ids.clear()
        self._epochs = ()
        self.flows.forget_names()

    async def epoch_tag(self, task_id: int) -> str:
        """Return the tag of the server epoch in which an id was drawn; another server may draw the same id."""
        if not self._epochs:
            rows = await epoch_sql.read_epochs(self._database)
            self._epochs = tuple(
                Epoch(
                    epoch=row.epoch,
                    tag=row.tag,
                    first_task_id=row.first_task_id,
                    middle_id=row.middle_id,
                    first_span=row.first_span,
                )
                for row in rows
            )
        return epoch_of(self._epochs, task_id).tag

    async def lane_id(self, tenant_id: int, queue: str, action: str) -> int:
        key = (tenant_id, queue, action)
        if (known := self._lane_ids.get(key)) is not None:
            return known
        found = await lanes_sql.find_lane(self._database, *key)
        if found is None:
            async with self._database.session() as session:
                await lanes_sql.ensure_queue(session, tenant_id, queue)
                await lanes_sql.ensure_lane(session, *key)
                found = await lanes_sql.find_lane(session, *key)
                assert found is not None, "it was just created"
        self._lane_ids[key] = found
        return found

    async def policy_id(self, tenant_id: int, policy: RetryPolicy) -> int:
        key = (tenant_id, policy)
        if (known := self._policy_ids.get(key)) is not None:
            return known
        content = json.dumps(policy.to_json(), separators=(",", ":"))
        digest = hashlib.sha256(content.encode()).digest()
        found = await lanes_sql.find_policy(self._database, tenant_id, digest)
        if found is None:
            async with self._database.session() as session:
                await lanes_sql.ensure_policy(
                    session,
                    tenant_id,
                    digest,
                    policy.max_retries,
                    policy.max_losses,
                    policy.timeout_seconds,
                    content,
                )
                found = await lanes_sql.find_policy(session, tenant_id, digest)
                assert found is not None, "it was just created"
        self._policy_ids[key] = found
        self._policies[found] = policy
        return found

    def policy(self, policy_id: int) -> RetryPolicy:
        """Return a cached policy; call `learn` first. `Invalid` if this version could not read it."""
        try:
            return self._policies[policy_id]
        except KeyError:
            if (error := self._unreadable.get(policy_id)) is None:
                raise
            raise error from None

    def lane(self, lane_id: int) -> Lane:
        """Return a cached lane; call `learn` first."""
        return self._lanes[lane_id]

    def knows_lane(self, lane_id: int) -> bool:
        return lane_id in self._lanes

    def knows_policy(self, policy_id: int) -> bool:
        return policy_id in self._policies

    def is_unreadable(self, policy_id: int) -> bool:
        """Return whether a policy was read that this version cannot decode."""
        return policy_id in self._unreadable

    async def learn(
        self, lane_ids: Iterable[int], policy_ids: Iterable[int], *, session: Session | None = None
    ) -> None:
        """Read the lanes and policies that are not cached yet. A policy that is damaged or of a newer version raises
        only when it is used, and is read again each time.

        A caller that has a pooled session passes it: waiting for a second one can deadlock a busy pool.
        """
        source = session or self._database
        if policies := [policy_id for policy_id in set(policy_ids) if policy_id not in self._policies]:
            for row in await lanes_sql.read_policies(source, policies):
                self._learn_policy(row.policy_id, row.content)
        if lanes := [lane_id for lane_id in set(lane_ids) if lane_id not in self._lanes]:
            for lane_id, action, queue, tenant, tenant_id, is_guarded in await lanes_sql.read_lanes(source, lanes):
                self._lanes[lane_id] = Lane(lane_id, action, queue, tenant, tenant_id)
                if is_guarded:
                    self.guarded.add(lane_id)

    def _learn_policy(self, policy_id: int, content: str) -> None:
        try:
            self._policies[policy_id] = RetryPolicy.from_json(json.loads(content))
            self._unreadable.pop(policy_id, None)
        except Invalid as error:
            if policy_id not in self._unreadable:
                log.error("policy %s cannot be read: %s", policy_id, error)
            self._unreadable[policy_id] = error

    async def declare(
        self,
        tenant_id: int,
        action: str,
        queue: str,
        policy: RetryPolicy,
        version: str,
        *,
        launcher: str | None = None,
        priority: int = PRIORITY_DEFAULT,
    ) -> None:
        """Store what this process declares about an action."""
        lane_id = await self.lane_id(tenant_id, queue, action)
        policy_id = await self.policy_id(tenant_id, policy)
        await self.learn([lane_id], [policy_id])
        await lanes_sql.declare_action(self._database, tenant_id, action, queue, policy_id, version, launcher, priority)

    async def declared(self, tenant_id: int, action: str) -> ActionRules | None:
        """Return queue, priority and policy that a worker last declared for an action, or None."""
        row = await lanes_sql.read_action(self._database, tenant_id, action)
        if row is None:
            return None
        policy = RetryPolicy.from_json(json.loads(row.content))
        return ActionRules(queue=row.queue, priority=row.priority, policy=policy)
