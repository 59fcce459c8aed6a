"""A replay beside the record: every way in which the two can be alike or differ."""

from __future__ import annotations

import pytest

from holdfast.core.tasks.failure import Failure, failure_of
from holdfast.core.tasks.replay import Recorded, ReplayMatch, compare, place_of

TRACEBACK = """Traceback (most recent call last):
  File "/srv/holdfast/execute.py", line 12, in run
  File "{folder}/shop.py", line {line}, in charge
    raise ConnectionError("no")
ConnectionError: no
"""


def a_failure(kind="ConnectionError", line=7, folder="/app"):
    trace = TRACEBACK.format(line=line, folder=folder)
    return Failure(code="DAG_TASK_EXECUTION_EXCEPTION", type=kind, message="no", traceback=trace)


def recorded(state="failed", failure=None, **fields):
    told = failure or a_failure()
    return Recorded(
        attempt=2, state=state, code=told.code, type=told.type, message="no", traceback=told.traceback, **fields
    )


@pytest.mark.parametrize(
    ("then", "now", "likeness"),
    [
        (recorded(), a_failure(), ReplayMatch.SAME_FAILURE),
        (recorded(), a_failure(folder="C:\\app"), ReplayMatch.SAME_FAILURE),
        (recorded(), a_failure(line=8), ReplayMatch.OTHER_LINE),
        (recorded(), a_failure("ValueError"), ReplayMatch.OTHER_FAILURE),
        (recorded("timed_out"), None, ReplayMatch.COMPLETES_NOW),
        (recorded(), None, ReplayMatch.COMPLETES_NOW),
        (recorded("completed"), a_failure(), ReplayMatch.FAILS_NOW),
        (recorded("completed"), None, ReplayMatch.OTHER_OUTPUT),
        (None, None, ReplayMatch.NOTHING_RECORDED),
        (recorded("lost"), a_failure(), ReplayMatch.NOTHING_RECORDED),
        (recorded("running"), None, ReplayMatch.NOTHING_RECORDED),
        (recorded("canceled"), None, ReplayMatch.NOTHING_RECORDED),
    ],
)
def test_how_a_replay_compares(then, now, likeness):
    found = compare(then, now)
    assert found.likeness is likeness
    assert found.sentence.endswith(".")


def test_the_same_output_is_told():
    assert compare(recorded("completed"), None, is_same_output=True).likeness is ReplayMatch.SAME_OUTPUT


def test_a_sentence_names_the_place():
    assert "at shop.py:7 in charge" in compare(recorded(), a_failure()).sentence
    assert "the same way at shop.py:8 in charge" in compare(recorded(), a_failure(line=8)).sentence


def test_the_place_is_the_innermost_frame_of_the_last_error():
    try:
        try:
            raise KeyError("first")
        except KeyError:
            int("second")
    except ValueError as error:
        trace = failure_of(error).traceback
    assert place_of(trace).startswith("test_replay.py:")
    assert place_of(trace).endswith("in test_the_place_is_the_innermost_frame_of_the_last_error")
    assert place_of("") == ""
