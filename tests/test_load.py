"""Finding the App that a command line names."""

from __future__ import annotations

import sys

import pytest

from holdfast.authoring.app import App
from holdfast.authoring.loader import load_app
from holdfast.errors import Invalid

SHOP = 'import holdfast as hf\napp = hf.App("shop")\nother = hf.App("other")\nnot_an_app = 3\n'


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "shop_for_load.py").write_text(SHOP)
    yield tmp_path
    for name in ("shop_for_load", "broken_for_load", "json_app"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("ref", "name"),
    [
        ("shop_for_load:app", "shop"),
        ("shop_for_load.py:app", "shop"),
        ("./shop_for_load.py:other", "other"),
        ("shop_for_load", "shop"),
        ("shop_for_load.py", "shop"),
    ],
)
def test_a_module_and_a_file_give_their_app(shop, ref, name):
    app = load_app(ref)
    assert isinstance(app, App)
    assert app.name == name


def test_a_file_and_a_module_of_the_same_name_are_one_program(shop):
    assert load_app("shop_for_load.py:app") is load_app("shop_for_load:app")


def test_a_file_may_have_dots_in_its_name(shop):
    (shop / "shop.v2.py").write_text(SHOP)
    assert load_app("shop.v2.py:app").name == "shop"


def test_a_file_sees_its_neighbours(shop):
    (shop / "deep").mkdir()
    (shop / "deep" / "neighbour_for_load.py").write_text(SHOP)
    (shop / "deep" / "entry_for_load.py").write_text("from neighbour_for_load import app\n")
    assert load_app("deep/entry_for_load.py:app").name == "shop"


def test_a_file_called_like_a_library_does_not_replace_it(shop):
    (shop / "json.py").write_text(SHOP)
    import json

    assert load_app("./json.py:app").name == "shop"
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("ref", "code", "text"),
    [
        ("nowhere.py:app", "app_not_found", "There is no file nowhere.py."),
        ("nowhere_for_load:app", "app_not_found", "There is no module 'nowhere_for_load'."),
        ("shop_for_load:ap", "app_not_found", "It has the app shop_for_load:app."),
        ("shop_for_load:not_an_app", "app_not_found", "is a int, not a holdfast.App"),
        (":app", "app_not_found", "names no module or file"),
        ("", "app_not_found", "names no module or file"),
        (
            "broken_for_load.py:app",
            "app_import_failed",
            "ZeroDivisionError: division by zero (broken_for_load.py, line 2)",
        ),
        (
            "broken_for_load:app",
            "app_import_failed",
            "ZeroDivisionError: division by zero (broken_for_load.py, line 2)",
        ),
    ],
)
def test_a_mistake_is_named(shop, ref, code, text):
    (shop / "broken_for_load.py").write_text("x = 0\ny = 1 / x\n")
    with pytest.raises(Invalid) as caught:
        load_app(ref)
    assert caught.value.code == code
    assert text in str(caught.value)


def test_a_missing_import_inside_the_app_is_not_a_missing_app(shop):
    (shop / "broken_for_load.py").write_text("import nothing_of_the_sort\n")
    with pytest.raises(Invalid, match="No module named 'nothing_of_the_sort'"):
        load_app("broken_for_load:app")


OWN_LINES = {
    "syntax": ("import holdfast as hf\n\ndef broken(:\n    pass\n", 3),
    "option": ('import holdfast as hf\n\napp = hf.App("x")\n\n@app.action(qeue="mail")\ndef f() -> None: ...\n', 5),
    "library": ('import json\n\n\nvalue = json.loads("{")\n', 4),
}


@pytest.mark.parametrize("case", OWN_LINES)
def test_an_import_error_names_the_file_and_line_of_the_user(tmp_path, case):
    text, line = OWN_LINES[case]
    file = tmp_path / f"own_{case}.py"
    file.write_text(text)
    with pytest.raises(Invalid) as refused:
        load_app(f"{file}:app")
    assert f"(own_{case}.py, line {line})" in refused.value.detail
