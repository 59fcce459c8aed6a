"""ECS launcher: one `RunTask` per attempt, with the extra `holdfast[aws]`.

Cluster, task definition, network and roles come from the profile. Only the environment of one container is overridden,
with the one-shot token and its attempt; the database URL belongs in the task definition, as a secret. The client token
is the launch's name, so that a repeat after a lost response starts nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast._internal.blocking_pool import BlockingCallPool
from holdfast.errors import Unavailable
from holdfast.launchers.contract import LaunchError, LaunchOrder, LaunchState, LaunchStatus, Options

OPTIONS = (
    "region",
    "endpoint_url",
    "cluster",
    "task_definition",
    "container",
    "launch_type",
    "capacity_provider",
    "platform_version",
    "subnets",
    "security_groups",
    "assign_public_ip",
    "cpu",
    "memory",
    "env",
    "tags",
)
DESCRIBE_MAX = 100
THREADS_MAX = 16
CALL_SECONDS = 10
ATTEMPTS_MAX = 3
"""Tries of one call by the client itself, under the same client token."""
STOP_REASON = "holdfast: the attempt has ended"


class EcsLauncher:
    kind = "ecs"

    def __init__(self, profile: str, values: Mapping[str, Any]) -> None:
        options = Options(profile, values, OPTIONS)
        self._cluster = options.text("cluster", "default")
        self._container = options.required("container")
        self._environment = options.environment()
        self._run = {"taskDefinition": options.required("task_definition"), **_placement(options)}
        self._size = {name: options.text(name) for name in ("cpu", "memory") if options.text(name)}
        self._tags = options.table("tags")
        self._client = _client(options)
        self._threads = BlockingCallPool("ecs", threads_max=THREADS_MAX)

    async def launch(self, order: LaunchOrder) -> str:
        environment = {**self._environment, **order.environment}
        override = {
            "name": self._container,
            "environment": [{"name": name, "value": value} for name, value in environment.items()],
        }
        parameters = {
            "cluster": self._cluster,
            "count": 1,
            "clientToken": order.name,
            "startedBy": order.name,
            "overrides": {"containerOverrides": [override], **self._size},
            **self._run,
        }
        if self._tags:
            parameters["tags"] = [{"key": key, "value": value} for key, value in self._tags.items()]
        try:
            answer = await self._call("run_task", **parameters)
        except LaunchError as error:
            # A request for the same attempt with another token was made before: the task started then is this launch,
            # even if it has stopped since, which a list of running tasks does not show.
            if error.fields.get("kind") != "ConflictException":
                raise
            if found := error.fields.get("resource_ids") or await self._named(order.name):
                return str(found[0])
            raise
        if not answer.get("tasks"):
            failures = "; ".join(
                f"{failure.get('arn', '')} {failure.get('reason', '')}" for failure in answer.get("failures", ())
            )
            raise LaunchError(f"ECS placed no task: {failures or 'no reason given'}.")
        return str(answer["tasks"][0]["taskArn"])

    async def describe(self, handles: Sequence[str]) -> Mapping[str, LaunchStatus]:
        found: dict[str, LaunchStatus] = {}
        for start in range(0, len(handles), DESCRIBE_MAX):
            part = list(handles[start : start + DESCRIBE_MAX])
            answer = await self._call("describe_tasks", cluster=self._cluster, tasks=part)
            found |= {task["taskArn"]: _status(task) for task in answer.get("tasks", ())}
            for failure in answer.get("failures", ()):
                if failure.get("reason") == "MISSING":
                    found[failure["arn"]] = LaunchStatus(state=LaunchState.MISSING, detail="ECS does not know the task")
        return found

    async def stop(self, name: str, handle: str | None) -> None:
        for task in [handle] if handle else await self._named(name):
            try:
                await self._call("stop_task", cluster=self._cluster, task=task, reason=STOP_REASON)
            except LaunchError as error:
                # A task that ECS no longer knows has stopped.
                if error.fields.get("kind") != "InvalidParameterException":
                    raise

    async def _named(self, name: str) -> list[str]:
        answer = await self._call("list_tasks", cluster=self._cluster, startedBy=name)
        return [str(arn) for arn in answer.get("taskArns", ())]

    async def _call(self, operation: str, **parameters: Any) -> Any:
        """Make one call of the blocking client in a thread; every failure is a `LaunchError`."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return await self._threads.run(getattr(self._client, operation), **parameters)
        except ClientError as error:
            error_detail = error.response.get("Error", {})
            text = f"ECS {operation}: {error_detail.get('Code', '')} {error_detail.get('Message', '')}".strip()
            ids = error.response.get("resourceIds", ())
            raise LaunchError(f"{text}.", kind=error_detail.get("Code", ""), resource_ids=ids) from error
        except BotoCoreError as error:
            raise LaunchError(f"ECS {operation}: {error}.") from error


def _placement(options: Options) -> dict[str, Any]:
    """Return the placement parameters of a task."""
    placement: dict[str, Any] = {}
    if provider := options.text("capacity_provider"):
        placement["capacityProviderStrategy"] = [{"capacityProvider": provider}]
    else:
        placement["launchType"] = options.text("launch_type", "FARGATE")
    if version := options.text("platform_version"):
        placement["platformVersion"] = version
    if subnets := options.texts("subnets"):
        network: dict[str, Any] = {
            "subnets": list(subnets),
            "assignPublicIp": "ENABLED" if options.truth("assign_public_ip", False) else "DISABLED",
        }
        if groups := options.texts("security_groups"):
            network["securityGroups"] = list(groups)
        placement["networkConfiguration"] = {"awsvpcConfiguration": network}
    return placement


def _client(options: Options) -> Any:
    try:
        import boto3
        from botocore.config import Config
    except ModuleNotFoundError as error:
        raise Unavailable(
            "The ECS launcher needs boto3, which is not installed.",
            code="extra_missing",
            advice="pip install 'holdfast[aws]'.",
        ) from error
    config = Config(
        connect_timeout=CALL_SECONDS,
        read_timeout=CALL_SECONDS,
        retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
    )
    where = {"region_name": options.text("region") or None, "endpoint_url": options.text("endpoint_url") or None}
    # A separate session: boto3's default one is not safe to use from several threads.
    return boto3.session.Session().client("ecs", config=config, **where)


def _status(task: Mapping[str, Any]) -> LaunchStatus:
    if task.get("lastStatus") != "STOPPED":
        return LaunchStatus(state=LaunchState.RUNNING, detail=str(task.get("lastStatus", "")))
    codes = [str(container["exitCode"]) for container in task.get("containers", ()) if "exitCode" in container]
    ended = f", exit code {', '.join(codes)}" if codes else ""
    detail = f"{task.get('stopCode', 'stopped')}: {task.get('stoppedReason', 'no reason given')}{ended}"
    return LaunchStatus(state=LaunchState.STOPPED, detail=detail)
