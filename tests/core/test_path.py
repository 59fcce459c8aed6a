"""The execution path names a task's place and its attempt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.tasks.path import execution_path, replace_attempt_segment


def test_a_node_of_a_flow_has_the_whole_path():
    path = execution_path(flow="nightly", run_id="r1", node="join", task_id="t1", attempt=2)
    assert path == ["flow:nightly", "run:r1", "node:join", "task:t1", "attempt:2"]


def test_a_plain_task_has_a_short_path():
    assert execution_path(task_id="t1", attempt=1) == ["task:t1", "attempt:1"]


def test_an_item_is_a_place_of_its_own_and_what_never_ran_has_no_attempt():
    path = execution_path(flow="nightly", run_id="r1", node="each", item=0, task_id="t1", attempt=0)
    assert path == ["flow:nightly", "run:r1", "node:each", "item:0", "task:t1"]


def test_the_attempt_is_replaced_in_a_copy():
    path = ["task:t1", "attempt:1"]
    assert replace_attempt_segment(path, 2) == ["task:t1", "attempt:2"]
    assert path == ["task:t1", "attempt:1"]


def test_a_segment_after_the_attempt_stays():
    assert replace_attempt_segment(["attempt:1", "x:y"], 9) == ["attempt:9", "x:y"]


@given(st.lists(st.text().filter(lambda segment: not segment.startswith("attempt:"))), st.integers(1))
def test_a_path_without_an_attempt_is_unchanged(path, next_attempt):
    copy = replace_attempt_segment(path, next_attempt)
    assert copy == path
    assert copy is not path
