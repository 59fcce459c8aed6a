"""What the guides to failures and packs show is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import holdfast as hf
from holdfast.authoring.loader import load_app
from holdfast.authoring.packs.load import read_pack
from holdfast.core.tasks.policy import PolicyDefaults
from holdfast.errors import TaskFailed
from holdfast.testing.idle import run_until_idle

DOCS = Path(__file__).resolve().parents[2] / "docs"
YAML = re.findall(r"```yaml\n(.*?)```", (DOCS / "packs.md").read_text(), re.DOTALL)


async def test_the_example_of_the_guide_to_failures_does_what_it_says(holdfast_url, clock, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "failures.md").read_text(), re.DOTALL)
    path = tmp_path / "failures_app.py"
    path.write_text(code)
    app = load_app(f"{path}:app")
    app.configure(hf.Settings(url=holdfast_url))
    charge = app.actions["shop.charge"]
    assert charge.policy(PolicyDefaults()).base_backoff_secs == 2
    async with app.client() as client:
        good, fatal, asked = [await client.enqueue(charge, order_id=number) for number in (7, -1, 0)]
        await run_until_idle(app, holdfast_url)
        assert await good.result(5) == "charged"
        with pytest.raises(TaskFailed, match="positive numbers"):
            await fatal.result(5)
        assert re.search(r"is due in (30\.0|29\.\d) s", (await asked.why()).headline)
        assert (await client.engine.database.fetchval("select count(*) from holdfast.breaker")) == 1


def test_every_action_of_the_guide_to_packs_is_sound(tmp_path):
    (tmp_path / "actions").mkdir()
    (tmp_path / "pack.yaml").write_text("name: mypack\n")
    (tmp_path / "actions" / "api.py").write_text("def run(): ...\n")
    for number, text in enumerate(YAML):
        (tmp_path / "actions" / f"{number}.yaml").write_text(text)
    pack = read_pack(tmp_path)
    assert pack.problems == []
    assert len(pack.app.actions) == len(YAML) == 3


def test_the_guide_names_every_field_of_an_action():
    from holdfast.authoring.packs.schema import ACTION_FIELDS, RUNTIME_FIELDS

    page = (DOCS / "packs.md").read_text()
    fields = {*ACTION_FIELDS, *(name for fields in RUNTIME_FIELDS.values() for name in fields)}
    missing = [
        name for name in fields - {"description", "memory_bytes_max"} if not re.search(rf"`[^`]*\b{name}\b", page)
    ]
    assert not missing


def test_the_example_pack_is_the_one_that_is_shown():
    label = Path(__file__).resolve().parents[2] / "examples" / "packs" / "shop" / "actions" / "label.yaml"
    shown = next(yaml.safe_load(text) for text in YAML if "name: label" in text)
    assert yaml.safe_load(label.read_text()).items() >= shown.items()
