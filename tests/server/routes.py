"""What routes want to know: what the placeholders of their paths stand for, and a body that each of them takes."""

from __future__ import annotations

import re
from typing import Any

from holdfast.server.app import ENDPOINTS
from holdfast.server.auth.caller import Access

WITH_ID = [one for one in ENDPOINTS if "{" in one.path and one.access is not Access.PUBLIC]

KINDS = {
    "task_id": "task",
    "run_id": "run",
    "dead_letter_id": "letter",
    "campaign_id": "campaign",
    "worker_id": "worker",
    "fingerprint": "fingerprint",
    "node": "node",
    "version": "version",
    "token_id": "token",
    "member_id": "member",
}
"""What the placeholders of paths stand for, but `name`, which says it by what it is under."""
NAMES = {
    "actions": "action",
    "datasets": "dataset",
    "effects": "name",
    "flows": "flow",
    "queues": "queue",
    "schedules": "schedule",
    "webhooks": "schedule",  # whoever has a schedule has a webhook of the same name
}
ELSEWHERE = {"/api/v1/dead/tasks/": {"task": "failed"}, "/nodes/": {"run": "asking"}}
"""Paths, by a part of them, that are about another one of the kind."""

REASON = {"reason": "because"}
BODIES: dict[str, dict[str, Any]] = {
    "/api/v1/tasks/{task_id}/copy": {},
    "/api/v1/queues/{name}/limit": {"running": 3, **REASON},
    "/api/v1/actions/{name}/breaker": {"to": "open", **REASON},
    "/api/v1/campaigns/{campaign_id}/approve": {},
}
"""What a POST takes that does not take a reason alone."""

IN_BODIES = [
    ("/api/v1/runs", lambda given: {"clone": str(given["run"])}),
    ("/api/v1/runs", lambda given: {"flow": given["flow"]}),
    ("/api/v1/tasks", lambda given: {"action": given["action"]}),
    ("/api/v1/tasks/batch", lambda given: {"action": given["action"], "inputs": [{}]}),
    ("/api/v1/schedules", lambda given: {"flow": given["flow"], "name": "nightly", "every": "1h"}),
    ("/api/v1/schedules", lambda given: {"action": given["action"], "name": "hourly", "every": "1h"}),
    ("/api/v1/signals", lambda given: {"run_id": str(given["asking"]), "name": "payment"}),
    ("/api/v1/campaigns", lambda given: {"fingerprint": given["fingerprint"], **REASON}),
    ("/api/v1/effects/compensate", lambda given: {"idempotency_key": given["effect"], **REASON}),
]
"""Routes that are told in their bodies what they are about: in the first field."""
IN_QUERIES = {
    "/api/v1/dead/letters": ("task_id=failed", "fingerprint=fingerprint"),
    "/api/v1/dead/export": ("fingerprint=fingerprint",),
    "/api/v1/effects": ("task_id=sent",),
    "/api/v1/audit": ("subject_id=campaign", "subject_id=schedule"),
    "/api/v1/tasks": ("queue=queue", "tag=queue"),
    "/api/v1/runs": ("flow=flow",),
}
"""Lists that can be asked for what belongs to one thing: the field, and the kind of what it names."""

AS_WORKER = {
    "/internal/task-claim": lambda _: {"limit": 1},
    "/internal/wait": lambda _: {"wait_seconds": 0},
    "/internal/exchange": lambda _: {"limit": 1, "held": []},
    "/internal/heartbeats": lambda lease: {"task_ids": [lease["task_id"]], "lease_tokens": [lease["lease_token"]]},
    "/internal/leave": lambda _: {},
    "/internal/attach": lambda lease: {"task_id": lease["task_id"], "attempt": 1, "launch_token": "x"},
}
"""What workers ask under their own number."""

UNDER_A_LEASE = {
    "/internal/heartbeat": {},
    "/internal/task-complete": {"status": "completed", "outputs": 1},
    "/internal/effects": {"name": "smtp.send", "key": "two", "arguments": {}},
    "/internal/effects/answer": {"idempotency_key": "one", "state": "done", "receipt": 1},
    "/internal/steps": {"name": "count", "arguments": {}, "output": 1},
    "/internal/steps/recall": {},
}
"""What attempts ask under their lease."""


def kinds_of(path: str) -> dict[str, str]:
    """What each placeholder of a path stands for, in order."""
    elsewhere = next((kinds for part, kinds in ELSEWHERE.items() if part in path), {})
    found = {}
    for name in re.findall(r"{(\w+)(?::\w+)?}", path):
        assert name in KINDS or name == "name", f"say in KINDS what {name} of {path} stands for"
        kind = NAMES[path.split("/")[3]] if name == "name" else KINDS[name]
        found[name] = elsewhere.get(kind, kind)
    return found


def filled(path: str, given: dict[str, Any]) -> str:
    """A path about what was given."""
    values = iter([str(given[kind]) for kind in kinds_of(path).values()])
    return re.sub(r"{[^}]*}", lambda _: next(values), path)


def body_for(method: str, path: str) -> dict[str, Any] | None:
    return BODIES.get(path, REASON) if method == "POST" else None
