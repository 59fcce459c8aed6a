"""Ray launcher: one detached actor per attempt, with the extra `holdfast[ray]`.

The actor runs `holdfast attach` as a child that dies with it, so a killed node, a killed actor and a killed worker have
the same effect. The actor has the launch's name, so a repeat finds the running one. Calls to Ray run in their own
threads; one process uses one cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast._internal.blocking_pool import BlockingCallPool
from holdfast.errors import Unavailable
from holdfast.launchers.contract import APP_VARIABLE, LaunchError, LaunchOrder, LaunchState, LaunchStatus, Options

OPTIONS = ("address", "namespace", "command", "app", "env", "cpus", "gpus", "resources", "runtime_env")
COMMAND = ("holdfast", "attach")
THREADS_MAX = 16


class RayLauncher:
    kind = "ray"

    def __init__(self, profile: str, values: Mapping[str, Any]) -> None:
        options = Options(profile, values, OPTIONS)
        self._address = options.text("address", "auto")
        self._namespace = options.text("namespace", "holdfast")
        self._command = list(options.texts("command") or COMMAND)
        self._environment = options.environment()
        if app := options.text("app"):
            self._environment[APP_VARIABLE] = app
        self._placing: dict[str, Any] = {"num_cpus": options.number("cpus", 1), "num_gpus": options.number("gpus", 0)}
        if resources := options.table("resources"):
            self._placing["resources"] = resources
        if runtime := options.table("runtime_env"):
            self._placing["runtime_env"] = runtime
        self._ray = _imported()
        self._connecting = asyncio.Lock()
        self._threads = BlockingCallPool("ray", threads_max=THREADS_MAX)

    async def launch(self, order: LaunchOrder) -> str:
        await self._run_step(self._launch, order)
        return order.name

    async def describe(self, handles: Sequence[str]) -> Mapping[str, LaunchStatus]:
        return {handle: await self._run_step(self._describe, handle) for handle in handles}

    async def stop(self, name: str, handle: str | None) -> None:
        await self._run_step(self._stop, handle or name)

    async def _run_step(self, step: Any, argument: Any) -> Any:
        """Run one step in a thread, after connecting; every exception of Ray is a `LaunchError`."""
        async with self._connecting:
            try:
                await self._threads.run(self._connect)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise LaunchError(f"The Ray cluster {self._address} cannot be reached: {error}.") from error
        try:
            return await self._threads.run(step, argument)
        except (self._ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
            raise LaunchError(f"Ray: {error}.") from error

    def _connect(self) -> None:
        if not self._ray.is_initialized():
            self._ray.init(
                address=self._address, namespace=self._namespace, log_to_driver=False, configure_logging=False
            )

    def _launch(self, order: LaunchOrder) -> None:
        actor = self._ray.remote(RayWorkerActor).options(
            name=order.name,
            namespace=self._namespace,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=0,
            **self._placing,
        )
        # Not awaited: it runs when the cluster has room, unless its reservation expires first.
        actor.remote(self._command, {**self._environment, **order.environment}).run.remote()

    def _describe(self, handle: str) -> LaunchStatus:
        """Return the state of an actor; a name that no longer exists belonged to a dead actor, or to none."""
        try:
            self._ray.get_actor(handle, namespace=self._namespace)
        except ValueError:
            return LaunchStatus(state=LaunchState.STOPPED, detail="its actor is dead")
        return LaunchStatus(state=LaunchState.RUNNING)

    def _stop(self, handle: str) -> None:
        try:
            self._ray.kill(self._ray.get_actor(handle, namespace=self._namespace), no_restart=True)
        except ValueError:
            return


class RayWorkerActor:
    """The actor that runs on the cluster. Its source is sent there, so it imports what it needs itself."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._is_started = False

    def run(self) -> None:
        """Run the command once, and end the actor with it. A second call does nothing: it is the same launch."""
        import ctypes
        import os
        import signal
        import subprocess

        import ray

        if self._is_started:
            return
        self._is_started = True
        libc = ctypes.CDLL(None)
        ends_with_parent = 1
        subprocess.run(
            self._command,
            env={**os.environ, **self._environment},
            stdin=subprocess.DEVNULL,
            preexec_fn=lambda: libc.prctl(ends_with_parent, signal.SIGKILL),
            check=False,
        )
        ray.actor.exit_actor()


def _imported() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise Unavailable(
            "The Ray launcher needs ray, which is not installed.",
            code="extra_missing",
            advice="pip install 'holdfast[ray]'.",
        ) from error
    return ray
