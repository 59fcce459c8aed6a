"""Fingerprints that group failures with the same cause, whichever task they happened to.

A fingerprint combines the exception's type, its message without the parts that vary between tasks (ids, numbers, quoted
values, addresses, hosts, paths, times), and the innermost frame of the user's own code without line numbers. The
engine's own messages about lost and timed-out attempts contain workers and times, so those failures are grouped by kind
and code only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence

from holdfast.core.tasks.outcome import Failed, Lost, TimedOut

FINGERPRINT_CHARACTERS = 16
MESSAGE_CHARACTERS_MAX = 2_000
"""Longer messages are compared by their first characters only."""

_STRONG = "com|net|org|edu|gov|mil|info|biz|cloud|internal|lan|corp|localdomain"
_WEAK = "io|ai|co|app|dev|local|svc|eu|de|uk|fr|nl|be|ch|at|it|es|pl|se|no|us|ca|au|nz|jp|cn|in|br|mx|za"
"""Top-level domains of host names. A module path or a sentence can end in a weak one, so weak ones need more
evidence."""
_HOST = re.compile(
    r"(?<![\w.@/-])(?:localhost"
    rf"|(?:[a-z0-9][a-z0-9-]*\.)+(?:{_STRONG})"
    rf"|(?:[a-z0-9][a-z0-9-]*\.){{2,}}(?:{_WEAK})"
    rf"|[a-z0-9-]*[0-9-][a-z0-9-]*\.(?:{_WEAK})"
    r")(?::\d+)?(?!\.?\w|-)"
)

_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Za-z]*\d)(?=\d*[A-Za-z])(?:[A-Za-z0-9]{8,}|(?<=[A-Za-z0-9>][-_#])[A-Za-z0-9]{4,})(?![A-Za-z0-9])"
)
"""Mixed letters and digits: long ones, and shorter ones after a prefix, as in ORD-7F3AQ."""
_PART = re.compile(r"\d+|[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[A-Z]")
_VOWEL = re.compile(r"[aeiouy]", re.I)
_SHORT = re.compile(
    "amd|arm|be|bit|ec|ed|es|gb|h|hs|https?|id|int|ip|ipv|k|kb|le|mb|md|mp|ms|p|ppc|px|py|rc|rs|s|sha|ssl|tb|tcp|tls|udp"
    "|utf|v|win|x|xx",
    re.I,
)
"""Words that occur next to a number although they are short or have no vowel: sha256, utf8mb4, ppc64le."""
_WORD_CHARACTERS_MIN = 3
_NUMBERS_MAX = 2


def _id_or_word(found: re.Match[str]) -> str:
    """Replace an id by `<id>`; keep words that contain a number, such as sha256sum or Invalid2Factor."""
    parts = _PART.findall(found[0])
    letters = [part for part in parts if not part.isdigit()]
    is_named = all(
        _SHORT.fullmatch(part) or (len(part) >= _WORD_CHARACTERS_MIN and _VOWEL.search(part)) for part in letters
    )
    return found[0] if is_named and len(parts) - len(letters) <= _NUMBERS_MAX else "<id>"


_CHANGING: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b", re.I), "<uuid>"),
    (
        re.compile(
            r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z\b|UTC\b|[+-]\d\d:?\d\d))?)?"
            r"|\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b"
        ),
        "<time>",
    ),
    (re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>)\]]+", re.I), "<url>"),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "<email>"),
    (
        re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|(?<![\w:])\[?(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{1,4}\]?", re.I),
        "<ip>",
    ),
    (_HOST, "<host>"),
    (re.compile(r"(?<![\w'])'(?:[^'\\\n]|\\.)*'(?!\w)|\"(?:[^\"\\\n]|\\.)*\"|`[^`\n]*`"), "<quoted>"),
    (re.compile(r"(?<![\w<.])(?:[A-Za-z]:\\|\.{0,2}/|~/)[\w.@%+~\\/-]*[\w]"), "<path>"),
    (re.compile(r"\b0x[0-9a-f]+\b|\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b", re.I), "<hex>"),
    (_TOKEN, _id_or_word),
    (re.compile(r"(?<!\w)[-+]?\d[\d_]*(?:[.,]\d+)*(?:e[-+]?\d+)?|\d+", re.I), "<n>"),
)
_SPACE = re.compile(r"\s+")
_FRAME = re.compile(r'^  File "(?P<file>[^"\n]*)", line \d+, in (?P<function>\S+)', re.MULTILINE)

_INSTALLED = re.compile(r"[\\/](?:site|dist)-packages[\\/]")
_STANDARD = re.compile(r"[\\/]lib(?:64)?[\\/]python\d+\.\d+[\\/]|[\\/]Lib[\\/](?:asyncio|concurrent|threading)|^<")
_ENGINE = re.compile(
    r"[\\/]holdfast[\\/](?:_internal|core|store|engine|execution|client|worker|testing)[\\/](?:\w+[\\/])*\w+\.py$"
)


def fingerprint(outcome: Failed | TimedOut | Lost) -> str:
    """Return the fingerprint of an attempt that did not complete."""
    failure = outcome.failure
    if isinstance(outcome, Lost):
        return _digest("lost", failure.code, "")
    if isinstance(outcome, TimedOut) and not failure.frames:
        return _digest("timed_out", failure.code, "")
    return _digest(failure.type or failure.code, normalised(failure.message), own_frame(failure.frames))


def fingerprint_on_record(*, state: str, code: str, type: str, message: str, traceback: str) -> str:
    """Return the fingerprint of a stored failure.

    `state` is the attempt's state code; frames come from the traceback.
    """
    frames = frames_of(traceback)
    if state == "l":
        return _digest("lost", code, "")
    if state == "t" and not frames:
        return _digest("timed_out", code, "")
    return _digest(type or code, normalised(message), own_frame(frames))


def normalised(message: str) -> str:
    """Return the message without the parts that vary between tasks."""
    text = message[:MESSAGE_CHARACTERS_MAX]
    for pattern, name in _CHANGING:
        text = pattern.sub(name, text)
    return _SPACE.sub(" ", text).strip()


def own_frame(frames: Sequence[str]) -> str:
    """Return the innermost frame of the user's own code as `file.py:function`, without its folder.

    An app that is installed as a package has no frames outside the installed libraries. Then the outermost installed
    frame counts, which is the action itself.
    """
    foreign = ""
    for frame in reversed(frames):
        file = frame.rpartition(":")[0]
        if _ENGINE.search(file):
            continue
        if _INSTALLED.search(file):
            foreign = frame
        elif not _STANDARD.search(file):
            return _short(frame)
    return _short(foreign)


def frames_of(traceback: str) -> tuple[str, ...]:
    """Return the frames of a formatted traceback as `file:function`, innermost last; of a chain, those of the last
    part.
    """
    last = traceback.rpartition("Traceback (most recent call last):")[2]
    return tuple(f"{found['file']}:{found['function']}" for found in _FRAME.finditer(last))


def _short(frame: str) -> str:
    return re.split(r"[\\/]", frame)[-1]


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:FINGERPRINT_CHARACTERS]
