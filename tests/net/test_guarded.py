"""The guarded client against a real server: pins what it resolved, follows nothing, and never waits for a body."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import asynccontextmanager

import pytest
from tests.net.receiver import endless, receiving, saying, silent

from holdfast.errors import Invalid
from holdfast.net.address import EgressRules
from holdfast.net.guarded_request import Guarded, NotReached, check_url
from holdfast.settings.settings import EgressSettings

LOOPBACK = EgressRules.of(EgressSettings(allow=("127.0.0.0/8",), ports="*"))
STRICT = EgressRules.of(EgressSettings(ports="*"))


@asynccontextmanager
async def asking(rules=LOOPBACK, **options):
    guarded = Guarded(rules, **options)
    try:
        yield guarded
    finally:
        await guarded.close()


def resolving(*turns):
    """A resolver that gives another answer each time; `asked` counts."""
    left = list(turns)

    async def resolver(_host, _port):
        return left[0] if len(left) == 1 else left.pop(0)

    return resolver


async def test_a_request_arrives_with_its_name_on_an_address_that_was_checked():
    async with receiving() as receiver, asking(resolver=resolving(["127.0.0.1"])) as guarded:
        answer = await guarded.ask(
            "POST", f"http://hooks.example.com:{receiver.port}/a?b=c", headers={"x-one": "1"}, body=b"{}", seconds_max=5
        )
    (asked,) = receiver.asked
    assert (answer.status, asked.method, asked.path, asked.body) == (204, "POST", "/a?b=c", b"{}")
    assert asked.headers["host"] == f"hooks.example.com:{receiver.port}"
    assert asked.headers["x-one"] == "1"


async def test_tls_asks_for_the_name_and_trusts_nobody_unknown():
    greeting = asyncio.get_running_loop().create_future()

    async def serve(reader, writer):
        greeting.set_result(await reader.read(4096))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asking(resolver=resolving(["127.0.0.1"])) as guarded:
        with pytest.raises(NotReached, match="no connection"):
            await guarded.ask("POST", f"https://hooks.example.com:{port}/", seconds_max=5)
    hello = await greeting
    assert hello[:1] == b"\x16", "not a TLS handshake"
    assert b"hooks.example.com" in hello


async def test_connections_are_used_again():
    async with receiving() as receiver, asking() as guarded:
        for _ in range(3):
            await guarded.ask("GET", receiver.url, seconds_max=5)
    assert (len(receiver.asked), receiver.connections) == (3, 1)


async def test_a_name_that_is_bound_anew_between_check_and_connection_is_refused():
    resolver = resolving(["93.184.215.14"], ["127.0.0.1"])
    async with receiving() as receiver, asking(STRICT, resolver=resolver) as guarded:
        url = f"http://rebound.example.com:{receiver.port}/"
        await check_url(url, STRICT, resolver=resolver)
        with pytest.raises(Invalid) as refused:
            await guarded.ask("GET", url, seconds_max=5)
    assert refused.value.code == "url_not_allowed"
    assert receiver.connections == 0


async def test_one_inner_address_among_public_ones_is_enough_to_refuse():
    resolver = resolving(["93.184.215.14", "10.0.0.1"])
    with pytest.raises(Invalid):
        await check_url("https://mixed.example.com/", STRICT, resolver=resolver)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "169.254.169.254", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "fe80::1%eth0"]
)
async def test_a_name_that_means_an_inner_address_is_refused_when_saved(address):
    with pytest.raises(Invalid) as refused:
        await check_url("https://hooks.example.com/", STRICT, resolver=resolving([address]))
    assert refused.value.code == "url_not_allowed"


async def test_a_name_that_means_nothing_is_refused_when_saved():
    async def nobody(_host, _port):
        raise OSError("no such name")

    with pytest.raises(Invalid):
        await check_url("https://nobody.example.com/", STRICT, resolver=nobody)


async def test_a_name_of_ones_own_may_mean_an_inner_address():
    rules = EgressRules.of(EgressSettings(allow=("hooks.internal",)))
    await check_url("https://hooks.internal/", rules, resolver=resolving(["10.0.0.1"]))


async def test_loopback_is_refused_at_the_connection_too():
    async with receiving() as receiver, asking(STRICT) as guarded:
        with pytest.raises(Invalid):
            await guarded.ask("GET", receiver.url, seconds_max=5)
    assert receiver.connections == 0


async def test_a_redirect_is_not_followed():
    async with receiving() as inner:
        redirect = f"HTTP/1.1 302 Found\r\nlocation: {inner.url}\r\ncontent-length: 0\r\n\r\n".encode()
        async with receiving(saying(redirect)) as receiver, asking() as guarded:
            answer = await guarded.ask("POST", receiver.url, seconds_max=5)
    assert (answer.is_success, answer.status, inner.asked) == (False, 302, [])
    assert "not followed" in answer.sentence


async def test_an_answer_that_never_comes_is_given_up():
    async with receiving(silent) as receiver, asking() as guarded:
        with pytest.raises(NotReached, match="no response within"):
            await guarded.ask("GET", receiver.url, seconds_max=0.05)


OK = b"HTTP/1.1 200 OK\r\n"


async def test_a_body_without_an_end_is_not_waited_for():
    async with receiving(endless(OK + b"\r\n", b"x" * 65536)) as receiver, asking() as guarded:
        answer = await guarded.ask("GET", receiver.url, seconds_max=5)
    assert answer.is_success


async def test_headers_without_an_end_are_refused():
    async with receiving(endless(OK, b"x-more: " + b"y" * 8192 + b"\r\n")) as receiver, asking() as guarded:
        with pytest.raises(NotReached, match="violated the HTTP protocol"):
            await guarded.ask("GET", receiver.url, seconds_max=20)


async def test_a_bomb_stays_packed():
    bomb = gzip.compress(bytes(10_000_000))
    head = OK + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(bomb)
    async with receiving(saying(head + bomb)) as receiver, asking() as guarded:
        answer = await guarded.ask("GET", receiver.url, seconds_max=5)
    assert answer.is_success
    assert receiver.asked[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("noise", [b"SSH-2.0-OpenSSH\r\n", b"\x00" * 100, b"HTTP/9.9 what\r\n\r\n", b""])
async def test_noise_is_no_answer(noise):
    async with receiving(saying(noise)) as receiver, asking() as guarded:
        with pytest.raises(NotReached):
            await guarded.ask("GET", receiver.url, seconds_max=5)


async def test_nobody_there_is_no_answer():
    async with receiving() as receiver:
        pass
    async with asking() as guarded:
        with pytest.raises(NotReached, match="no connection"):
            await guarded.ask("GET", receiver.url, seconds_max=5)


async def test_a_proxy_carries_everything_and_resolves_names_itself():
    async with receiving() as proxy:
        rules = EgressRules.of(EgressSettings(proxy=f"http://127.0.0.1:{proxy.port}"))
        async with asking(rules) as guarded:
            await check_url("http://hooks.example.com/a", rules, resolver=_never)
            answer = await guarded.ask("POST", "http://hooks.example.com/a", seconds_max=5)
            with pytest.raises(Invalid):
                await guarded.ask("POST", "http://169.254.169.254/", seconds_max=5)
    assert answer.is_success
    assert [asked.path for asked in proxy.asked] == ["http://hooks.example.com/a"]


async def _never(_host, _port):
    raise AssertionError("names are the proxy's to resolve")


async def test_retry_after_is_kept():
    busy = b"HTTP/1.1 503 Busy\r\nretry-after: 120\r\ncontent-length: 0\r\n\r\n"
    async with receiving(saying(busy)) as receiver, asking() as guarded:
        answer = await guarded.ask("GET", receiver.url, seconds_max=5)
    assert (answer.status, answer.retry_after) == (503, "120")


async def test_a_cancelled_request_is_cancelled():
    async with receiving(silent) as receiver, asking() as guarded:
        asked = asyncio.Event()

        async def note(_asked):
            asked.set()

        receiver.on_asked = note
        asking_now = asyncio.create_task(guarded.ask("GET", receiver.url, seconds_max=60))
        await asked.wait()
        asking_now.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking_now
