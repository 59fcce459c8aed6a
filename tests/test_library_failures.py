"""Exceptions of real libraries, raised by real calls, are classified without rules of the action."""

from __future__ import annotations

import errno
import smtplib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent import futures
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import aiohttp
import asyncpg
import boto3
import botocore.config
import botocore.exceptions
import grpc
import httpx
import psycopg
import pytest
import requests
import sqlalchemy

from holdfast.core.tasks.classify import classify
from holdfast.core.tasks.failure import Failure, failure_of

STATUSES = {
    401: ("permission_denied", False),
    404: ("invalid_parameters", False),
    408: ("execution_timeout", True),
    425: ("transient_error", True),
    429: ("rate_limited", True),
    500: ("transient_error", True),
    503: ("transient_error", True),
    507: ("transient_error", True),
}


class Answers(BaseHTTPRequestHandler):
    """Answers every request with the status that ends its path, and asks the client to wait seven seconds."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.rpartition("/")[2]))
        self.send_header("Retry-After", "7")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def by_httpx(url: str) -> None:
    httpx.get(url).raise_for_status()


def by_requests(url: str) -> None:
    requests.get(url, timeout=30).raise_for_status()


def by_urllib(url: str) -> None:
    urllib.request.urlopen(url, timeout=30)


def raised(call: Callable[[], object]) -> Failure:
    with pytest.raises(Exception) as caught:
        call()
    return failure_of(caught.value)


def called(failure: Failure) -> tuple[str, bool]:
    found = classify(failure)
    return found.reason, found.is_retriable


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("get", [by_httpx, by_requests, by_urllib])
def test_an_http_status_decides(site, get, status):
    failure = raised(lambda: get(f"{site}/{status}"))
    assert called(failure) == STATUSES[status]
    assert failure.code == f"http_{status}" and failure.retry_after == timedelta(seconds=7)


@pytest.mark.parametrize("status", STATUSES)
async def test_an_http_status_of_aiohttp_decides(site, status):
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            async with session.get(f"{site}/{status}", raise_for_status=True):
                pass
    failure = failure_of(caught.value)
    assert called(failure) == STATUSES[status] and failure.retry_after == timedelta(seconds=7)


@pytest.mark.parametrize("status", [404, 503])
def test_an_http_status_of_botocore_decides(site, status):
    client = boto3.client(
        "s3",
        endpoint_url=site,
        region_name="us-east-1",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=botocore.config.Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
    )
    assert called(raised(lambda: client.get_object(Bucket="bucket", Key=str(status)))) == STATUSES[status]


def test_throttling_by_aws_is_a_rate_limit_although_its_status_is_400():
    response = {"Error": {"Code": "ThrottlingException"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    assert called(failure_of(botocore.exceptions.ClientError(response, "Send"))) == ("rate_limited", True)


@pytest.mark.parametrize("get", [by_httpx, by_requests, by_urllib])
def test_a_refused_connection_is_retried(get):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    assert called(raised(lambda: get(f"http://127.0.0.1:{port}/200"))) == ("connection_error", True)


SQLSTATES = {
    "40001": ("transient_error", True),
    "40P01": ("transient_error", True),
    "55P03": ("transient_error", True),
    "25006": ("transient_error", True),
    "53300": ("transient_error", True),
    "08006": ("connection_error", True),
    "57P03": ("connection_error", True),
    "57014": ("execution_timeout", True),
    "23505": ("validation", False),
    "22P02": ("validation", False),
    "42501": ("permission_denied", False),
    "42P01": ("fatal", False),
    "P0001": ("unclassified", False),
}


def raising(state: str) -> str:
    return f"do $$ begin raise exception 'as asked' using errcode = '{state}'; end $$"


@pytest.mark.parametrize("state", SQLSTATES)
async def test_the_sqlstate_of_each_driver_decides(holdfast_url, state):
    connection = await asyncpg.connect(holdfast_url)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)) as caught:
        await connection.execute(raising(state))
    await connection.close()
    assert called(failure_of(caught.value)) == SQLSTATES[state]

    with psycopg.connect(holdfast_url, autocommit=True) as psycopg_connection:
        assert called(raised(lambda: psycopg_connection.execute(raising(state)))) == SQLSTATES[state]

    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(holdfast_url))
    with engine.connect() as sqlalchemy_connection:
        failure = raised(lambda: sqlalchemy_connection.exec_driver_sql(raising(state)))
    engine.dispose()
    assert failure.type.startswith("sqlalchemy.") and called(failure) == SQLSTATES[state]


def test_a_database_that_cannot_be_reached_is_retried():
    url = "postgresql://nowhere@127.0.0.1:1/none"
    assert called(raised(lambda: psycopg.connect(url))) == ("connection_error", True)
    engine = sqlalchemy.create_engine(url.replace("postgresql", "postgresql+psycopg"))
    assert called(raised(engine.connect)) == ("connection_error", True)


@pytest.mark.parametrize(
    ("status", "reason", "is_retriable"),
    [
        ("UNAVAILABLE", "connection_error", True),
        ("DEADLINE_EXCEEDED", "execution_timeout", True),
        ("RESOURCE_EXHAUSTED", "rate_limited", True),
        ("ABORTED", "transient_error", True),
        ("PERMISSION_DENIED", "permission_denied", False),
        ("INVALID_ARGUMENT", "invalid_parameters", False),
        ("NOT_FOUND", "unclassified", False),
    ],
)
def test_the_status_of_a_grpc_call_decides(status, reason, is_retriable):
    class Handler(grpc.GenericRpcHandler):
        def service(self, _: object) -> grpc.RpcMethodHandler:
            return grpc.unary_unary_rpc_method_handler(
                lambda _, context: context.abort(getattr(grpc.StatusCode, status), "as asked")
            )

    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=(Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        failure = raised(lambda: channel.unary_unary("/service/method")(b""))
    server.stop(None).wait()
    assert called(failure) == (reason, is_retriable)


@pytest.mark.parametrize(
    ("number", "reason", "is_retriable"),
    [
        (errno.EHOSTUNREACH, "connection_error", True),
        (errno.ENETUNREACH, "connection_error", True),
        (errno.ETIMEDOUT, "execution_timeout", True),
        (errno.ENOSPC, "transient_error", True),
        (errno.ENOENT, "unclassified", False),
        (errno.EACCES, "permission_denied", False),
    ],
)
def test_the_errno_of_an_operating_system_error_decides(number, reason, is_retriable):
    class StorageError(OSError): ...

    assert called(failure_of(OSError(number, "as asked"))) == (reason, is_retriable)

    own = StorageError(number, "as asked")
    assert called(failure_of(own))[1] is is_retriable


def test_names_that_cannot_be_resolved_for_now_are_retried():
    assert called(failure_of(socket.gaierror(socket.EAI_AGAIN, "try again")))[1]
    assert not called(failure_of(socket.gaierror(socket.EAI_NONAME, "not known")))[1]


def test_the_reply_of_a_mail_server_decides():
    assert called(failure_of(smtplib.SMTPResponseException(451, b"later"))) == ("transient_error", True)
    assert called(failure_of(smtplib.SMTPResponseException(550, b"no such user"))) == ("fatal", False)
    assert called(failure_of(smtplib.SMTPServerDisconnected("gone"))) == ("connection_error", True)


class Hostile(Exception):
    @property
    def response(self) -> object:
        raise RuntimeError("do not ask")

    code = status_code = sqlstate = orig = reason = response


def test_reading_a_code_never_raises():
    assert called(failure_of(Hostile("x"))) == ("unclassified", False)
