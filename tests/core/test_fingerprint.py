"""A fingerprint stays the same while what happened is the same, and changes when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.core.tasks.failure import Failure, failure_of
from holdfast.core.tasks.fingerprint import fingerprint, fingerprint_on_record, frames_of, normalised, own_frame
from holdfast.core.tasks.outcome import Failed, Lost, TimedOut


def of(message="boom", *, type="shop.Declined", frames=("/srv/shop/mail.py:send",), code="X"):
    return fingerprint(Failed(Failure(code=code, message=message, type=type, frames=frames)))


SAME = {
    "uuids": ("no order 7c9e6679-7425-40de-944b-e07fc1f90ae7", "no order 0e37df36-f698-11e6-8dd4-cb9ced3df976"),
    "numbers": ("order 17 costs 12.50", "order 918273 costs -1,200.00"),
    "hexadecimals": ("block 0x7ffdeadbeef at 9f86d081884c7d65", "block 0x1 at 2c26b46b68ffc68ff99b"),
    "quoted strings": ("KeyError: 'alice'", 'KeyError: "bob builds"'),
    "addresses": ("cannot reach 10.0.0.7:5432", "cannot reach 192.168.13.200:6543"),
    "version 6 addresses": ("cannot reach [2001:db8::1]", "cannot reach [fe80::a0b:1]"),
    "paths": ("no file /srv/in/2026/a.csv", "no file /mnt/other/b.csv"),
    "windows paths": (r"no file C:\in\a.csv", r"no file D:\out\b\c.csv"),
    "e-mails": ("bounced: ann@example.com", "bounced: bob.b+x@mail.example.org"),
    "timestamps": ("late since 2026-11-15T10:00:00Z", "late since 2027-01-02 03:04:05.678+01:00"),
    "clock times": ("expired at 10:00:01", "expired at 23:59:59.123"),
    "urls": ("GET https://api.example.com/v1/orders/7 failed", "GET http://localhost:8080/x?y=1 failed"),
    "spaces": ("two  words", "two\n words"),
    "ids inside words": ("no table orders_2026", "no table orders_7"),
    "ulids": ("no order 01HGW2N7EHJVQ4K8M3ZBX5T9RC", "no order 01JC3W9T0QX8ZK5V7N2MRBDYFA"),
    "ids with a prefix": ("no such charge: ch_3MmlLrLkdIwHu7ix0uFZ4L7p", "no such charge: ch_1NirD82eZvKYlo2CIvbtLWuY"),
    "coded ids": ("order ORD-7F3AQ is closed", "order ORD-Q2X9K is closed"),
    "short coded ids": ("invoice INV-00A7", "invoice INV-9K2B"),
    "names of pods": ("lost orders-7d9f8b6c5d-x2k4j", "lost orders-5c6b7d8f9a-q9w8z"),
    "base 62": ("job kT3bQ9xZ2m failed", "job Pp0Lw4vR7s failed"),
    "host names": ("cannot reach db-3.prod.example.com", "cannot reach redis.eu.example.org:6379"),
    "hosts of a cluster": ("no route to pay.shop.svc.cluster.local", "no route to mail.shop.svc.cluster.local:8080"),
    "internal hosts": ("no route to db.internal", "no route to cache-2.internal"),
}

DIFFERENT = {
    "words": ("connection refused", "connection reset"),
    "words with digits": ("sha256sum differs", "base64decode differs"),
    "names of protocols": ("http2stream closed", "oauth2callback closed"),
    "names of encodings": ("no codec utf8mb4", "no codec latin1swedish"),
    "camel case": ("Invalid2FactorCode", "Expired2FactorCode"),
    "platforms": ("no wheel for linux-amd64", "no wheel for linux-arm64"),
    "algorithms": ("key-rs256 is unknown", "key-es256 is unknown"),
    "snake case": ("level_2_cache is full", "level_2_queue is full"),
    "modules": ("no module shop.charge.card", "no module shop.refund.card"),
    "modules that end like hosts": ("pandas.io.parsers failed", "pandas.io.formats failed"),
    "files": ("orders.csv is empty", "refunds.csv is empty"),
    "prefixes of ids": ("no such thing: ch_3MmlLrLkdIwHu7ix", "no such thing: pi_3MmlLrLkdIwHu7ix"),
    "codes": ("ORD-FAILED", "ORD-CLOSED"),
    "sentences without spaces": ("done.no more", "done.so more"),
}


@pytest.mark.parametrize("what", SAME)
def test_what_changes_from_task_to_task_does_not_count(what):
    one, other = SAME[what]
    assert one != other and of(one) == of(other), (normalised(one), normalised(other))


@pytest.mark.parametrize("what", DIFFERENT)
def test_words_do_not_collapse(what):
    one, other = DIFFERENT[what]
    assert of(one) != of(other), (normalised(one), normalised(other))


@pytest.mark.parametrize(
    "changed",
    [
        {"message": "no stock"},
        {"type": "shop.Refused"},
        {"frames": ("/srv/shop/mail.py:queue",)},
        {"frames": ("/srv/shop/post.py:send",)},
    ],
)
def test_another_fault_has_another_fingerprint(changed):
    assert of(**changed) != of()


def test_contractions_are_not_quotes():
    assert of("can't open it, won't try") != of("can't close it, won't try")


def test_where_the_app_is_installed_does_not_count():
    assert of(frames=("/srv/releases/41/shop/mail.py:send",)) == of(frames=("/opt/app/shop/mail.py:send",))


def test_the_innermost_frame_of_own_code_counts():
    frames = (
        "/usr/lib/python3.12/asyncio/runners.py:run",
        "/srv/src/holdfast/execution/runner.py:run",
        "/srv/shop/orders.py:charge",
        "/srv/shop/mail.py:send",
        "/opt/venv/lib/python3.12/site-packages/httpx/_client.py:post",
        "/usr/lib/python3.12/ssl.py:read",
    )
    assert own_frame(frames) == "mail.py:send"


def test_an_installed_app_is_known_by_its_action():
    frames = (
        "/opt/venv/lib/python3.12/site-packages/holdfast/execution/runner.py:run",
        "/usr/lib/python3.12/concurrent/futures/thread.py:run",
        "/opt/venv/lib/python3.12/site-packages/shop/orders.py:charge",
        "/opt/venv/lib/python3.12/site-packages/httpx/_client.py:post",
    )
    assert own_frame(frames) == "orders.py:charge"


def test_no_frames_are_no_trouble():
    assert own_frame(()) == ""


def test_lost_attempts_are_one_fault_whoever_lost_them():
    lost = [Lost(Failure(code="L", message=f"The lease of worker {n} (host-{n}) expired")) for n in range(2)]
    assert len({fingerprint(one) for one in lost}) == 1


def test_a_timeout_that_nobody_raised_is_one_fault():
    late = [TimedOut(Failure(code="T", message=f"worker {n} (host-{n}) went silent")) for n in range(2)]
    assert len({fingerprint(one) for one in late}) == 1
    assert fingerprint(late[0]) != fingerprint(Lost(late[0].failure))


def test_a_failure_on_record_has_the_same_fingerprint():
    try:
        int("twelve")
    except ValueError as error:
        failure = failure_of(error)
    known = {name: getattr(failure, name) for name in ("code", "type", "message", "traceback")}
    assert frames_of(failure.traceback) == failure.frames
    assert fingerprint_on_record(state="f", **known) == fingerprint(Failed(failure))


def test_a_huge_message_takes_no_time_to_speak_of():
    assert of("9" * 8_000) == of("8" * 8_000)
    assert of("a1" * 4_000) and of("a-1" * 3_000) and of("a." * 4_000) and of("a1-" * 3_000)
    assert of("'" * 8_000) and of("a@" * 4_000) and of("::" * 4_000) and of("/" * 8_000)


def test_frames_of_every_module_around_an_attempt_are_skipped():
    """Whatever folder a module of the engine is in: a file outside of site-packages looks like a user's otherwise."""
    root = Path(holdfast.__file__).parent
    parts = ("core", "store", "engine", "execution", "client", "worker", "testing", "_internal")
    files = [path for part in parts for path in (root / part).rglob("*.py") if path.name != "__init__.py"]
    assert len(files) > 200
    for path in files:
        frames = ("/srv/shop/mail.py:send", f"/srv/checkout/src/holdfast/{path.relative_to(root)}:call")
        assert own_frame(frames) == "mail.py:send", path
