"""What a worker over HTTP holds: claim it, and name its lease in a report."""

from __future__ import annotations


async def claimed(call, worker, **fields):
    answer = await call.post("/internal/task-claim", {"worker_id": worker, "limit": 10, **fields})
    assert answer.status == 200, answer.body
    return answer.json["tasks"]


def lease_of(task, **changes):
    return {name: task[name] for name in ("task_id", "attempt", "lease_token")} | changes
