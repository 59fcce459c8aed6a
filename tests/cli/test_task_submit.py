"""`holdfast task submit`: what it takes, what it refuses, and what a key stands for."""

from __future__ import annotations

from tests.by_sql import declare


def test_submit_needs_a_declared_action_or_an_app(holdfast, shop):
    ran = holdfast("task", "submit", "shop.double")
    assert (ran.code, "No worker ever declared the action 'shop.double'" in ran.err) == (3, True)
    ran = holdfast("task", "submit", "shop.double", "--app", f"{shop}:app", "--input", '{"x": 4}')
    assert (ran.code, ran.out.strip()) == (0, "1")
    ran = holdfast("task", "submit", "shop.nothing", "--app", f"{shop}:app")
    assert (ran.code, "This app has no action" in ran.err) == (3, True)


def test_submit_uses_what_workers_declared(holdfast, seed):
    async def declare(harness):
        from holdfast.core.tasks.retry import RetryPolicy

        await harness.engine.catalog.declare(1, "shop.mail", "mail", RetryPolicy(max_retries=7), "1", priority=1)

    seed(declare)
    body = holdfast("task", "submit", "shop.mail", "--input", '{"connection": 1}', "-o", "json").json
    assert body == {"task_id": "1", "action": "shop.mail", "queue": "mail", "state": "queued"}
    view = holdfast("task", "show", "1", "-o", "json").json
    assert (view["max_attempts"], view["priority"], view["input"]) == (8, 1, {"connection": 1})
    assert "Did you mean shop.mail?" in holdfast("task", "submit", "shop.mial").err


def test_submit_takes_every_option(holdfast, shop, tmp_path):
    (tmp_path / "input.json").write_text('{"x": 1}')
    ran = holdfast(
        *("task", "submit", "shop.double", "--app", f"{shop}:app", "--input", f"@{tmp_path}/input.json"),
        *("--queue", "other", "--delay", "1h", "--priority", "2", "--tag", "a", "--tag", "b", "--key", "k"),
    )
    view = holdfast("task", "show", ran.out.strip(), "-o", "json").json
    assert (view["queue"], view["priority"], view["tags"], view["key"]) == ("other", 2, ["a", "b"], "k")
    assert view["due_at"] is not None
    assert view["input"] == {"x": 1}


def test_a_key_gives_the_same_task_and_refuses_another_input(holdfast, shop):
    submit = ("task", "submit", "shop.double", "--app", f"{shop}:app", "--key", "k", "--input")
    assert holdfast(*submit, '{"x": 1}').out == holdfast(*submit, "-", stdin='{"x": 1}').out
    ran = holdfast(*submit, '{"x": 2}')
    assert (ran.code, "idempotency_key_reused" in ran.err) == (5, True)


def test_a_key_used_again_tells_how_its_task_stands(holdfast, shop):
    submit = ("task", "submit", "shop.double", "--app", f"{shop}:app", "--key", "k", "--input", '{"x": 1}')
    first = holdfast(*submit, "-o", "json").json
    copied = ("task", "submit", "--copy-of", first["task_id"], "--key", "c")
    copy = holdfast(*copied, "-o", "json").json
    assert (first["state"], copy["state"]) == ("queued", "queued")
    holdfast("task", "cancel", first["task_id"], copy["task_id"], "--yes")
    for command, task in ((submit, first), (copied, copy)):
        assert holdfast(*command, "-o", "json").json == {**task, "state": "canceled"}
    assert "; it is canceled. Follow it" in holdfast(*submit).err


def test_a_bad_input_is_a_usage_error(holdfast, shop, subtests):
    for given, code in [
        ("{", "payload_not_json"),
        ("[1]", "invalid_input"),
        ("7", "invalid_input"),
        ("@nowhere", "invalid_input"),
    ]:
        with subtests.test(given=given, code=code):
            ran = holdfast("task", "submit", "shop.double", "--app", f"{shop}:app", "--input", given)
            assert (ran.code, code in ran.err) == (2, True)


def test_types_are_checked_where_the_code_is_known(holdfast, shop, seed):
    """What a worker declared has names and rules, and no types: there the attempt refuses the input."""
    submit = ("task", "submit", "shop.double", "x=many")
    ran = holdfast(*submit, "--app", f"{shop}:app")
    assert (ran.code, "invalid_input" in ran.err) == (2, True)
    assert holdfast("task", "list", "-o", "json").json == []
    seed(lambda harness: declare(harness.engine, "shop.double"))
    assert holdfast(*submit).code == 0


def test_a_file_that_is_not_utf_8_is_a_usage_error(bare, tmp_path):
    (tmp_path / "latin1.json").write_bytes('{"name": "Müller"}'.encode("latin-1"))
    ran = bare("task", "submit", "shop.double", "--input", f"@{tmp_path}/latin1.json")
    assert (ran.code, "UTF-8" in ran.err, "payload_not_json" in ran.err) == (2, True, True)


BAD = {"--priority": "11", "--delay": "soon", "--queue": "no spaces", "--input": '{"y": 1}', "--key": "", "--tag": ""}


def test_a_bad_option_stores_nothing(holdfast, shop):
    for option in BAD.items():
        ran = holdfast("task", "submit", "shop.double", "--app", f"{shop}:app", "--input", '{"x": 1}', *option)
        assert ran.code == 2
    assert holdfast("task", "list", "-o", "json").json == []
