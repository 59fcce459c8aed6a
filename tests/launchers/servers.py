"""Two platforms on loopback that really run each task as a local process: one speaks ECS, one Kubernetes.

What they do wrong is asked for: `faults` happen to the next launches, one each.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

LOSE_ANSWER, BROKEN = "lose the answer", "500"


class Machine:
    """Processes by name. A name runs once, however often it is asked for."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment
        self.children: dict[str, subprocess.Popen] = {}
        self.faults: list[str] = []
        self.launches = 0
        self.calls: list[tuple[str, Any]] = []
        self.lock = threading.Lock()
        self.url = ""

    def run(self, name: str, command: list[str], environment: dict[str, str]) -> bool:
        """Start it unless it was; whether this call did."""
        with self.lock:
            self.launches += 1
            if name in self.children:
                return False
            self.children[name] = subprocess.Popen(
                command,
                env={**os.environ, **self.environment, **environment},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            return True

    def fault(self) -> str:
        return self.faults.pop(0) if self.faults else ""

    def code(self, name: str) -> int | None:
        code = self.children[name].poll()
        return code if code is None or code >= 0 else 128 - code

    def end(self, name: str, which: int = signal.SIGTERM) -> None:
        if self.children[name].poll() is None:
            os.killpg(self.children[name].pid, which)

    def close(self) -> None:
        for name, child in self.children.items():
            self.end(name, signal.SIGKILL)
            child.wait()


class Handler(BaseHTTPRequestHandler):
    machine: ClassVar[Machine]
    protocol_version = "HTTP/1.1"

    def log_message(self, *_arguments: Any) -> None:
        pass

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")

    def answer(self, status: int, body: Any, kind: str = "application/json") -> None:
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def hang_up(self) -> None:
        """The answer is lost on the way."""
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


class Ecs(Handler):
    """RunTask, DescribeTasks, StopTask and ListTasks in the JSON protocol; the definition has the command.

    As at Amazon, only what runs is listed.
    """

    definition: ClassVar[list[str]]
    arns: ClassVar[dict[str, str]]
    environments: ClassVar[dict[str, dict[str, str]]]
    """What each client token was first used with: with anything else it is a conflict."""

    def do_POST(self) -> None:
        operation, asked = self.headers["x-amz-target"].rpartition(".")[2], self.body()
        self.machine.calls.append((operation, asked))
        match operation:
            case "RunTask":
                self.run_task(asked)
            case "DescribeTasks":
                known = set(self.arns.values())
                self.tell(
                    {
                        "tasks": [self.view(arn) for arn in asked["tasks"] if arn in known],
                        "failures": [{"arn": arn, "reason": "MISSING"} for arn in asked["tasks"] if arn not in known],
                    }
                )
            case "StopTask":
                name = self.name(asked["task"])
                self.machine.end(name)
                self.tell({"task": self.view(asked["task"])})
            case "ListTasks":
                name = asked.get("startedBy", "")
                is_running = name in self.arns and self.machine.code(name) is None
                self.tell({"taskArns": [self.arns[name]] if is_running else []})
            case _:
                self.fail(400, "InvalidParameterException")

    def run_task(self, asked: dict[str, Any]) -> None:
        fault, name = self.machine.fault(), asked["clientToken"]
        if fault == BROKEN:
            self.fail(500, "ServerException")
            return
        if set(asked["overrides"]) - {"containerOverrides"} or len(asked["overrides"]["containerOverrides"]) != 1:
            self.fail(400, "InvalidParameterException")
            return
        [override] = asked["overrides"]["containerOverrides"]
        assert set(override) == {"name", "environment"}
        environment = {one["name"]: one["value"] for one in override["environment"]}
        if self.environments.setdefault(name, environment) != environment:
            self.fail(400, "ConflictException", resourceIds=[self.arns[name]])
            return
        self.arns.setdefault(asked["startedBy"], f"arn:aws:ecs:eu-1:1:task/{asked['cluster']}/{uuid.uuid4().hex}")
        self.machine.run(name, self.definition, environment)
        if fault == LOSE_ANSWER:
            self.hang_up()
            return
        self.tell({"tasks": [self.view(self.arns[name])], "failures": []})

    def name(self, arn: str) -> str:
        return next(name for name, known in self.arns.items() if known == arn)

    def view(self, arn: str) -> dict[str, Any]:
        code = self.machine.code(self.name(arn))
        status = "RUNNING" if code is None else "STOPPED"
        container = {"name": "worker", "lastStatus": status, **({} if code is None else {"exitCode": code})}
        ended = {} if code is None else {"stopCode": "EssentialContainerExited", "stoppedReason": "it exited"}
        return {"taskArn": arn, "lastStatus": status, "containers": [container], **ended}

    def tell(self, body: Any) -> None:
        self.answer(200, body, "application/x-amz-json-1.1")

    def fail(self, status: int, kind: str, **fields: Any) -> None:
        self.answer(status, {"__type": kind, "message": kind, **fields}, "application/x-amz-json-1.1")


class Kubernetes(Handler):
    """Create, read and delete Jobs, and list the pods of one. The image names nothing; the command is run."""

    def do_POST(self) -> None:
        asked = self.body()
        self.machine.calls.append(("create", asked))
        fault, name = self.machine.fault(), asked["metadata"]["name"]
        if fault == BROKEN:
            self.answer(500, {"kind": "Status", "message": "etcd is away"})
            return
        [container] = asked["spec"]["template"]["spec"]["containers"]
        is_new = self.machine.run(name, container["command"], {one["name"]: one["value"] for one in container["env"]})
        if fault == LOSE_ANSWER:
            self.hang_up()
            return
        self.answer(201 if is_new else 409, asked if is_new else {"reason": "AlreadyExists"})

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        self.machine.calls.append(("read", self.headers.get("authorization")))
        if where.path.endswith("/pods"):
            name = parse_qs(where.query)["labelSelector"][0].removeprefix("job-name=")
            state = {"terminated": {"exitCode": self.machine.code(name)}}
            self.answer(200, {"items": [{"status": {"containerStatuses": [{"state": state}]}}]})
            return
        name = where.path.rpartition("/")[2]
        if name not in self.machine.children:
            self.answer(404, {"reason": "NotFound"})
            return
        code = self.machine.code(name)
        counts = {"active": 1} if code is None else {"succeeded": 1} if code == 0 else {"failed": 1}
        self.answer(200, {"metadata": {"name": name}, "status": counts})

    def do_DELETE(self) -> None:
        asked, name = self.body(), urlsplit(self.path).path.rpartition("/")[2]
        assert asked["propagationPolicy"] == "Background"
        self.machine.calls.append(("delete", name))
        if name not in self.machine.children:
            self.answer(404, {"reason": "NotFound"})
            return
        self.machine.end(name)
        self.answer(200, {"kind": "Status", "status": "Success"})


@contextmanager
def serving(kind: type[Handler], environment: dict[str, str], **options: Any):
    """One of the platforms, on a free port."""
    machine = Machine(environment)
    handler = type("Served", (kind,), {"machine": machine, **options})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    machine.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield machine
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        machine.close()
