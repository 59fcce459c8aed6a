"""The pages about HTTP name every route with whom it admits, and their examples work."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from holdfast.operations.openapi import document
from holdfast.operations.reference import reference as http_page
from holdfast.server.app import ENDPOINTS
from holdfast.server.worker_api.openapi import contract
from holdfast.server.worker_api.openapi import page as worker_page
from holdfast.testing.factories import a_task

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "http.md").read_text()


def test_every_route_is_documented_with_its_access():
    rows = set(re.findall(r"^\| (GET|POST) \| `([^`]+)` \| (\w+) \|", PAGE, re.MULTILINE))
    reference = http_page() + worker_page()
    rows |= set(re.findall(r"^### (GET|POST|DELETE) (\S+)\n\n.*? For (\w+?)s; answers", reference, re.MULTILINE))
    assert rows == {(endpoint.method, endpoint.path, endpoint.access.value) for endpoint in ENDPOINTS}


async def test_the_worker_of_the_page_empties_a_queue(call, harness, engine, tmp_path):
    await harness.enqueue_many(a_task(), [{"amount": amount} for amount in range(12)])
    program = tmp_path / "worker.py"
    section = PAGE.partition("## A worker in any language")[2]
    program.write_text(re.search(r"```python\n(.*?)```", section, re.DOTALL)[1])
    process = await asyncio.create_subprocess_exec(sys.executable, str(program), call.url)
    assert await process.wait() == 0
    outputs = await engine.database.fetch("select output from holdfast.attempt where state = 'c' order by task_id")
    assert [row["output"] for row in outputs] == [b'{"charged":%d}' % amount for amount in range(12)]


def test_every_array_of_both_documents_says_what_is_in_it():
    def bare(schema, path=""):
        if isinstance(schema, dict):
            if schema.get("type") == "array" and not schema.keys() & {"items", "prefixItems"}:
                yield path
            for name, part in schema.items():
                yield from bare(part, f"{path}/{name}")
        elif isinstance(schema, list):
            for part in schema:
                yield from bare(part, path)

    assert [*bare(contract()), *bare(document())] == []
