"""`holdfast pack check` and workers of packs."""

from __future__ import annotations

from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "packs"


def test_a_sound_pack_passes(bare):
    ran = bare("pack", "check", str(EXAMPLES))
    assert (ran.code, ran.out) == (0, "shop\tok\tshop.label, shop.notify, shop.price\n")


def test_mistakes_are_listed_by_file_and_line(bare, tmp_path):
    (tmp_path / "actions").mkdir()
    (tmp_path / "pack.yaml").write_text("name: mine\n")
    (tmp_path / "actions" / "a.yaml").write_text("name: a\nruntime: shell\nentrypoint: ls\nqueeu: x\n")
    ran = bare("pack", "check", str(tmp_path))
    said = f"{tmp_path}/actions/a.yaml:4: There is no field 'queeu' here. Did you mean queue?\n"
    assert (ran.code, ran.out) == (1, said)
    (found,) = bare("pack", "check", str(tmp_path), "-o", "json").json
    assert [(one["line"], one["severity"]) for one in found["problems"]] == [(4, "error")]


def test_a_warning_does_not_fail_the_check(bare, tmp_path):
    (tmp_path / "pack.yaml").write_text("name: mine\n")
    ran = bare("pack", "check", str(tmp_path))
    assert (ran.code, "(warning)" in ran.out) == (0, True)


def test_a_folder_without_a_pack_is_not_found(bare, tmp_path):
    assert bare("pack", "check", str(tmp_path)).code == 3


def test_work_needs_an_app_or_a_pack(bare):
    assert bare("work").code == 2


@pytest.mark.crash
def test_a_worker_runs_the_actions_of_a_pack(program, holdfast):
    worker = program.start("work", "--pack", str(EXAMPLES), HOLDFAST_POLL_SECONDS="0.2")
    label = holdfast("task", "submit", "shop.label", "--input", '{"order_id": 7}', "--wait", "-o", "json")
    while label.code == 3 and worker.poll() is None:  # until the worker has declared its actions
        label = holdfast("task", "submit", "shop.label", "--input", '{"order_id": 7}', "--wait", "-o", "json")
    assert (label.code, '"DE-7"' in label.out) == (0, True)
    price = holdfast("task", "submit", "shop.price", "--input", '{"items": [3, 4]}', "--wait", "-o", "json")
    assert (price.code, "7.0" in price.out) == (0, True)
