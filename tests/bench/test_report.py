"""Targets, verdicts and pictures, as values."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from holdfast_bench.arena import in_database
from holdfast_bench.bars import charts
from holdfast_bench.marks import new_marks
from holdfast_bench.report import plain, verdict
from holdfast_bench.spread import percentile, spread
from holdfast_bench.suite import beside_ours
from holdfast_bench.svg import svg
from holdfast_bench.targets import lines


def a_drain(ratio: float = 0.8) -> dict[str, Any]:
    rate = {"median": 800.0, "min": 700.0, "max": 900.0, "runs": 3}
    return {
        "tasks_per_s": 800.0,
        "raw_ceiling_per_s": 1000.0,
        "ratio": ratio,
        "processes": 2,
        "spread": rate,
        "raw_spread": rate,
    }


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ({"drain": a_drain(0.7)}, {"drain": "met"}),
        ({"drain": a_drain(0.69)}, {"drain": "missed"}),
        ({"bytes_per_task": 401}, {"kept per task": "missed"}),
        ({"memory": {"drift_mb": -21}}, {"memory drift": "missed"}),
        ({"memory": {"drift_mb": None}}, {"memory drift": "unknown"}),
        ({"flow": {}, "peers": {}}, {}),
    ],
)
def test_each_number_is_held_against_its_target(results: dict[str, Any], expected: dict[str, str]) -> None:
    assert {line.name: verdict(line) for line in lines(results)} == expected


def test_plain_output_is_one_line_per_number() -> None:
    assert plain({"drain": a_drain()}) == "drain\t80 %\t≥ 70 %\tmet\t800 tasks/s of a raw 1,000"


def test_peers_with_flows_are_shown_beside_ours() -> None:
    rate = {"median": 5.0, "min": 4.0, "max": 6.0, "runs": 1}
    theirs = {"chords": {"drain_per_s": 5.0, "spread": rate, "tasks": 102}, "away": {"drain_per_s": None, "note": "no"}}
    peers = beside_ours(12.0, theirs)
    assert [(one["nodes_per_s"], one["ratio"]) for one in peers.values()] == [(5.0, 2.4), (None, None)]
    flow = {"nodes_per_s": 12.0, "spread": {**rate, "median": 12.0}, "width": 100, "peers": peers}
    shown = plain({"flow": flow}).splitlines()
    assert shown[-2:] == ["peer chords\t5.0\t\t\tnodes/s; ours went 2.4 times as fast", "peer away\t\t\t\tno"]
    [chart] = charts({"flow": flow})
    assert [bar.label for bar in chart.bars] == ["Holdfast", "chords"]


def test_the_picture_is_well_formed_whatever_a_peer_is_called() -> None:
    peers = {"<a & b>": {"drain_per_s": 5.0, "spread": {"median": 5.0, "min": 4.0, "max": 6.0, "runs": 1}}}
    drawn = ElementTree.fromstring(svg(charts({"drain": a_drain(), "peers": peers})))

    assert "<a & b>" in [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert ElementTree.fromstring(svg([])) is not None


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:p@h:5432/shop", "postgresql://u:p@h:5432/mine"),
        ("postgresql://postgres@/holdfast?host=/run/x", "postgresql://postgres@/mine?host=/run/x"),
        ("postgresql://h?dbname=shop&sslmode=require", "postgresql://h/mine?sslmode=require"),
    ],
)
def test_another_database_on_the_same_server(url: str, expected: str) -> None:
    assert in_database(url, "mine") == expected


def test_marks_tell_doubles_from_losses() -> None:
    with new_marks(4) as marks:
        for i in (0, 1, 1):
            marks.hit(i)
        assert (marks.missing(4), marks.doubles(4), marks.count(1)) == (2, 1, 2)


def test_the_middle_and_the_tail_of_several_runs() -> None:
    assert (spread([3, 1, 2]).median, spread([3, 1, 2]).min, spread([3, 1, 2]).max) == (2, 1, 3)
    assert (percentile(range(100), 0.5), percentile(range(100), 0.99), percentile([1], 1.0)) == (50, 99, 1)
