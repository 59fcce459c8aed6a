"""Kubernetes launcher: one Job per attempt, over plain HTTP; a client library would be larger than Holdfast.

It makes four calls: create (a taken name means that it is already launched), read, list pods for the exit code, delete
with dependents. Inside a cluster the service account's token and certificate are found automatically; elsewhere the
profile names the server. Image, command, account and resources come only from the profile.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast._internal.blocking_pool import BlockingCallPool
from holdfast.errors import InvalidSettings
from holdfast.launchers.contract import APP_VARIABLE, LaunchError, LaunchOrder, LaunchState, LaunchStatus, Options

OPTIONS = (
    "url",
    "token",
    "token_file",
    "ca_file",
    "namespace",
    "image",
    "command",
    "app",
    "env",
    "secret",
    "service_account",
    "cpu",
    "memory",
    "labels",
    "keep_seconds",
)
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
COMMAND = ("holdfast", "attach")
CALL_SECONDS = 10.0
THREADS_MAX = 16
TRIES_MAX = 3
"""Tries of one call whose response got lost; the name makes a repeat the same launch."""
RETRY_SECONDS = 0.2
KEEP_SECONDS = 3600
"""How long the cluster keeps a finished Job, so that its log can be read."""
BODY_BYTES_MAX = 4 * 1024 * 1024
_CONFLICT, _NOT_FOUND, _BROKEN = 409, 404, 500


class KubernetesLauncher:
    kind = "kubernetes"

    def __init__(self, profile: str, values: Mapping[str, Any]) -> None:
        options = Options(profile, values, OPTIONS)
        self._url = options.text("url") or _in_cluster(profile)
        self._token = options.text("token")
        self._token_file = Path(options.text("token_file") or ACCOUNT / "token")
        self._namespace = options.text("namespace") or _namespace()
        self._context = _context(self._url, options.text("ca_file"))
        self._template = _template(options)
        self._threads = BlockingCallPool("kubernetes", threads_max=THREADS_MAX)
        self._environment = options.environment()
        if app := options.text("app"):
            self._environment[APP_VARIABLE] = app

    async def launch(self, order: LaunchOrder) -> str:
        status, answer = await self._call("POST", "jobs", body=self._job(order))
        if status not in (200, 201, 202, _CONFLICT):
            raise LaunchError(f"Kubernetes refused the Job: {_error_text(status, answer)}.")
        return order.name

    async def describe(self, handles: Sequence[str]) -> Mapping[str, LaunchStatus]:
        return {handle: await self._describe(handle) for handle in handles}

    async def _describe(self, handle: str) -> LaunchStatus:
        status, job = await self._call("GET", f"jobs/{handle}")
        if status == _NOT_FOUND:
            return LaunchStatus(state=LaunchState.MISSING, detail="there is no such Job")
        if status != 200:
            raise LaunchError(f"Kubernetes did not show the Job {handle}: {_error_text(status, job)}.")
        state = job.get("status", {})
        if not (state.get("succeeded") or state.get("failed")):
            return LaunchStatus(state=LaunchState.RUNNING)
        condition_met: dict[str, Any] = next(
            (condition for condition in state.get("conditions", ()) if condition.get("status") == "True"), {}
        )
        why = condition_met.get("message") or condition_met.get("type") or "its pod ended"
        return LaunchStatus(state=LaunchState.STOPPED, detail=f"Job {handle}: {why}{await self._exit_code(handle)}")

    async def _exit_code(self, handle: str) -> str:
        selector = urllib.parse.urlencode({"labelSelector": f"job-name={handle}"})
        status, pods = await self._call("GET", f"pods?{selector}", group="api/v1")
        ended = [
            container["state"]["terminated"]["exitCode"]
            for pod in (pods.get("items", ()) if status == 200 else ())
            for container in pod.get("status", {}).get("containerStatuses", ())
            if "terminated" in container.get("state", {})
        ]
        return f", exit code {ended[-1]}" if ended else ""

    async def stop(self, name: str, handle: str | None) -> None:
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        status, answer = await self._call("DELETE", f"jobs/{handle or name}", body=body)
        if status not in (200, 202, _NOT_FOUND):
            raise LaunchError(f"Kubernetes did not delete the Job {handle or name}: {_error_text(status, answer)}.")

    def _job(self, order: LaunchOrder) -> dict[str, Any]:
        job: dict[str, Any] = json.loads(json.dumps(self._template))
        job["metadata"]["name"] = order.name
        environment = {**self._environment, **order.environment}
        container = job["spec"]["template"]["spec"]["containers"][0]
        container["env"] = [{"name": name, "value": value} for name, value in environment.items()]
        return job

    async def _call(
        self, method: str, path: str, *, body: Any = None, group: str = "apis/batch/v1"
    ) -> tuple[int, dict[str, Any]]:
        """Make one call, repeated while its response gets lost or the server reports an error."""
        url = f"{self._url.rstrip('/')}/{group}/namespaces/{self._namespace}/{path}"
        for left in reversed(range(TRIES_MAX)):
            try:
                status, answer = await self._threads.run(self._request, method, url, body)
            except (OSError, ValueError) as error:
                if not left:
                    raise LaunchError(f"Kubernetes did not respond to {method} {path}: {error}.") from error
            else:
                if status < _BROKEN or not left:
                    return status, answer
            await asyncio.sleep(RETRY_SECONDS)
        raise AssertionError("the last try returns or raises")

    def _request(self, method: str, url: str, body: Any) -> tuple[int, dict[str, Any]]:
        headers = {"Accept": "application/json", "Content-Type": "application/json", "User-Agent": "holdfast"}
        if token := self._token or _read(self._token_file):
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=CALL_SECONDS, context=self._context) as answer:
                return answer.status, _decoded(answer.read(BODY_BYTES_MAX))
        except urllib.error.HTTPError as error:
            return error.code, _decoded(error.read(BODY_BYTES_MAX))


def _template(options: Options) -> dict[str, Any]:
    """Return the Job that the profile describes, without name and environment, which each launch adds."""
    container: dict[str, Any] = {
        "name": "worker",
        "image": options.required("image"),
        "command": list(options.texts("command") or COMMAND),
    }
    if secret := options.text("secret"):
        container["envFrom"] = [{"secretRef": {"name": secret}}]
    if size := {name: options.text(name) for name in ("cpu", "memory") if options.text(name)}:
        container["resources"] = {"requests": size, "limits": size}
    pod: dict[str, Any] = {"restartPolicy": "Never", "containers": [container]}
    if account := options.text("service_account"):
        pod["serviceAccountName"] = account
    labels = {**options.table("labels"), "app.kubernetes.io/managed-by": "holdfast"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"labels": labels},
        # One pod, never restarted: another attempt is another Job, with its own token.
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": options.number("keep_seconds", KEEP_SECONDS),
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _in_cluster(profile: str) -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise InvalidSettings(
            f"launchers.{profile} has no url, and this process does not run in a pod.",
            advice="Set url, token_file and ca_file; see docs/launchers.md.",
            setting="url",
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


def _namespace() -> str:
    return _read(ACCOUNT / "namespace") or "default"


def _context(url: str, ca_file: str) -> ssl.SSLContext | None:
    if not url.startswith("https:"):
        return None
    inside = ACCOUNT / "ca.crt"
    return ssl.create_default_context(cafile=ca_file or (str(inside) if inside.is_file() else None))


def _read(path: Path) -> str:
    """Read the file for each call: the cluster rotates a service account's token from time to time."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _decoded(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body or b"{}")
    except ValueError:
        return {"message": body[:200].decode(errors="replace")}
    return found if isinstance(found, dict) else {}


def _error_text(status: int, answer: Mapping[str, Any]) -> str:
    return f"HTTP {status} {answer.get('reason', '')} {answer.get('message', '')}".strip()
