"""Loading of the App that a command line names: `module:app` or `file.py:app`.

A file is loaded under the name that an import would give it, from its own directory, so that it and its neighbours are
one program, however they are reached. Every failure is reported with what to fix, never as a bare traceback.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from holdfast.authoring.app import App
from holdfast.errors import Invalid

ATTRIBUTE_DEFAULT = "app"


def load_app(ref: str, packs: Sequence[str] = ()) -> App:
    """Import the module or file before the colon and return the App after it (`app` if none is named).

    Actions of `packs` are added to it; without a ref the packs alone are the app.
    """
    loaded = [_pack(folder) for folder in packs]
    app = _named_app(ref) if ref.strip() or not loaded else loaded.pop(0)
    for pack in loaded:
        app.include(pack)
    return app


def _pack(folder: str) -> App:
    from holdfast.authoring.packs.load import load_pack

    return load_pack(folder)


def _named_app(ref: str) -> App:
    source, _, attribute = ref.strip().rpartition(":") if _has_attribute(ref) else (ref.strip(), "", "")
    attribute = attribute or ATTRIBUTE_DEFAULT
    if not source:
        raise Invalid(
            f"{ref!r} names no module or file.", code="app_not_found", advice="Write `module:app` or `file.py:app`."
        )
    module = _load_file(Path(source)) if _is_file_like(source) else _load_module(source)
    return _find(module, source, attribute)


def _has_attribute(ref: str) -> bool:
    """Return whether the ref has an attribute after a colon, other than the colon of a Windows drive."""
    return ref.rfind(":") > 1 or ref.strip().startswith(":")


def _is_file_like(source: str) -> bool:
    return source.endswith(".py") or "/" in source or "\\" in source


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise Invalid(
            f"There is no file {path}.",
            code="app_not_found",
            advice=f"Relative paths start at {Path.cwd()}.",
            path=str(path),
        )
    _see_first(path.resolve().parent)
    name = path.stem.replace(".", "_")
    loaded = sys.modules.get(name)
    if loaded is not None and _is_same_file(loaded, path):
        return loaded
    # A file with the name of an already imported module gets a distinct name, or it would replace that module.
    if loaded is not None or not _is_importable_as(name, path):
        name = f"{name}_app"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise _broken(str(path), error) from error
    return module


def _load_module(name: str) -> ModuleType:
    _see_first(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Invalid(
                f"There is no module {name!r}.",
                code="app_not_found",
                advice=f"Modules are imported from {Path.cwd()} and PYTHONPATH; a file is written `file.py:app`.",
            ) from error
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _find(module: ModuleType, source: str, attribute: str) -> App:
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            apps = sorted(name for name, value in vars(module).items() if isinstance(value, App))
            raise Invalid(
                f"{source} has no attribute {attribute!r}.",
                code="app_not_found",
                advice=f"It has the app {source}:{apps[0]}." if apps else 'Write `app = holdfast.App("name")` there.',
            )
        found = getattr(found, part)
    if not isinstance(found, App):
        raise Invalid(
            f"{source}:{attribute} is a {type(found).__name__}, not a holdfast.App.",
            code="app_not_found",
            advice="Pass the App object.",
        )
    return found


def _broken(source: str, error: BaseException) -> Invalid:
    """Build an error with the failing line and the last line of the exception; the traceback stays as the cause."""
    where = _where(error)
    last = traceback.format_exception_only(error)[-1].strip().rstrip(".")
    return Invalid(
        f"{source} could not be imported: {last}{where}.",
        code="app_import_failed",
        advice=f"Run `python {source}` to see the traceback."
        if source.endswith(".py")
        else f"Run `python -c 'import {source}'` to see the traceback.",
    )


def _where(error: BaseException) -> str:
    """Return the file and line of the user's own code that failed, not those of a library."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" ({Path(error.filename).name}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    own = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)] or frames
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


_LIBRARIES = (
    str(Path(__file__).resolve().parents[1]),
    *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")),
)


def _see_first(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _is_importable_as(name: str, path: Path) -> bool:
    found = importlib.util.find_spec(name)
    return found is None or (found.origin is not None and Path(found.origin).resolve() == path.resolve())


def _is_same_file(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path.resolve()
