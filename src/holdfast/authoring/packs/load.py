"""Loading of packs: a folder with `pack.yaml` and `actions/*.yaml` becomes an App that workers run like any other.

The `defaults` of a pack apply to every action that does not set the option itself. YAML actions are not retried unless
they say so; where a launcher starts their worker, they are retried once.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.authoring.action import retries_within
from holdfast.authoring.app import App
from holdfast.authoring.context import Context
from holdfast.authoring.packs.document import Document, PackProblem, read_document
from holdfast.authoring.packs.http_runtime import HttpRequest
from holdfast.authoring.packs.parameters import Parameter, with_parameters
from holdfast.authoring.packs.schema import check_action, check_pack
from holdfast.authoring.packs.shell_runtime import ShellCommand
from holdfast.errors import HoldfastError, Invalid

PACK_FILE = "pack.yaml"
FUNCTION_DEFAULT = "run"
RETRIES_DEFAULT = 0
_RETRY_POLICY_FIELDS = ("queue_ttl_seconds",)
_ALSO_IN_RETRY = ("max_retries", "max_losses", "timeout_seconds", "rules", "queue_ttl_seconds")
"""Policy fields that may also be written inside `retry`; there they count as if they were written outside."""


@dataclass(slots=True)
class Pack:
    """One pack as read: its usable actions, and all its problems."""

    folder: Path
    app: App | None = None
    problems: list[PackProblem] = field(default_factory=list)

    @property
    def errors(self) -> list[PackProblem]:
        return [problem for problem in self.problems if not problem.is_warning]


def load_pack(folder: str | Path) -> App:
    """Return the App of one pack; `Invalid` names every mistake with its file and line."""
    pack = read_pack(Path(folder))
    if pack.errors or pack.app is None:
        listed = "\n".join(f"  {problem}" for problem in sorted(pack.errors))
        count = f"{len(pack.errors)} mistake{'s' if len(pack.errors) > 1 else ''}"
        raise Invalid(f"The pack {folder} has {count}:\n{listed}", code="invalid_pack", problems=pack.errors)
    return pack.app


def find_packs(folder: Path) -> list[Path]:
    """Return the pack in a folder, or the packs in its subfolders."""
    if (folder / PACK_FILE).is_file():
        return [folder]
    return sorted(inner.parent for inner in folder.glob(f"*/{PACK_FILE}"))


def read_pack(folder: Path, *, imports: bool = True) -> Pack:
    """Read a pack and find all its problems. Without `imports` no code of the pack runs."""
    pack = Pack(folder)
    if not (folder / PACK_FILE).is_file():
        text = f"There is no {PACK_FILE} here." if folder.is_dir() else "There is no such folder."
        pack.problems.append(PackProblem(file=str(folder / PACK_FILE), line=1, text=text))
        return pack
    head = read_document(folder / PACK_FILE)
    check_pack(head)
    about: dict[str, Any] = head.value if isinstance(head.value, dict) else {}
    defaults = about.get("defaults")
    app = _app(head, about, folder.resolve().name)
    pack.problems += head.problems
    if app is None:
        return pack
    for path in sorted((folder / "actions").glob("*.y*ml")):
        document = read_document(path)
        _PackBuilder(app, folder.resolve(), defaults if isinstance(defaults, dict) else {}, imports).add(document)
        pack.problems += document.problems
    if not pack.errors:
        pack.problems += _load_flows(app, folder / "flows")
    if not app.actions and not pack.problems:
        head.complain("The pack has no actions.", advice="Put them into actions/*.yaml.", is_warning=True)
        pack.problems += head.problems
    pack.app = app
    return pack


def _load_flows(app: App, folder: Path) -> list[PackProblem]:
    """Add the pack's flows; a mistake in one is a problem of the pack."""
    found = []
    for path in sorted(folder.glob("*.y*ml")):
        try:
            app.load_flows(path)
        except HoldfastError as error:
            line = error.fields.get("line", 1)
            text = error.detail.removeprefix(f"{path}:{line}: ")
            found.append(PackProblem(file=str(path), line=line, text=text, advice=error.advice))
    return found


def _app(head: Document, about: Mapping[str, Any], usual_name: str) -> App | None:
    try:
        return App(str(about.get("name", usual_name)), version=str(about.get("version", "")))
    except HoldfastError as error:
        head.complain(error.detail, "name", advice=error.advice)
        return None


@dataclass(frozen=True, slots=True)
class _PackBuilder:
    """Adds the actions of one pack to its app."""

    app: App
    folder: Path
    defaults: Mapping[str, Any]
    imports: bool

    def add(self, document: Document) -> None:
        parameters = check_action(document)
        if any(not problem.is_warning for problem in document.problems):
            return
        value = document.value
        function = self._function(document, value, parameters)
        if function is None:
            return
        try:
            self.app.action(**self._options(value))(function)
        except HoldfastError as error:
            named = str(error.fields.get("field", "")).partition("[")[0]
            inside = "retry" if named in value.get("retry", {}) else ""
            places = (named, inside, _SOURCES.get(named, ""), "name")
            where = next((name for name in places if name in value), "name")
            document.complain(error.detail, where, advice=error.advice)

    def _options(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of an action. Precedence, weakest first: defaults of YAML actions, pack, action."""
        defaults, value = _flat(self.defaults), _flat(value)
        merged = {**defaults, **value}
        merged["retry"] = {**defaults["retry"], **value["retry"]}
        merged["retry"] |= {name: merged[name] for name in _RETRY_POLICY_FIELDS if name in merged}
        # Where workers are launched, the settings decide, as for actions in code.
        usual = None if merged.get("launcher") is not None else RETRIES_DEFAULT
        retries = _retries(value, _retries(defaults, usual))
        options = {"max_retries": retries, "name": value["name"], "retry": merged["retry"]}
        taken = ("queue", "priority", "max_losses", "breaker", "quota", "isolation", "memory_bytes_max", "launcher")
        options |= {name: merged[name] for name in taken if name in merged}
        if "timeout_seconds" in merged:
            options["timeout"] = merged["timeout_seconds"]
        if "rules" in merged:
            options["rules"] = [_rule(rule) for rule in merged["rules"]]
        if value.get("runtime") == "shell":
            options["isolation"] = "process"
        return options

    def _function(
        self, document: Document, value: Mapping[str, Any], parameters: tuple[Parameter, ...]
    ) -> Callable[..., Any] | None:
        match value.get("runtime", "python"):
            case "shell":
                return with_parameters(_as_function(self._command(value, parameters), runtime="shell"), parameters)
            case "http" if importlib.util.find_spec("httpx") is None:
                document.complain("The http runtime needs httpx.", "runtime", advice="pip install 'holdfast[http]'.")
                return None
            case "http":
                return with_parameters(_as_coroutine(self._request(value, parameters)), parameters)
            case _:
                return self._imported(document, value["entrypoint"], parameters)

    def _command(self, value: Mapping[str, Any], parameters: tuple[Parameter, ...]) -> ShellCommand:
        entrypoint = value["entrypoint"]
        argv = [entrypoint] if isinstance(entrypoint, str) else list(entrypoint)
        through_shell = value.get("shell", False)
        if not through_shell and (self.folder / argv[0]).is_file():
            argv[0] = str(self.folder / argv[0])
        return ShellCommand(
            argv=tuple(argv),
            folder=self.folder,
            parameters=parameters,
            environment=value.get("env", {}),
            inherited=tuple(value.get("inherit_env", ())),
            through_shell=through_shell,
            is_json=value.get("output") == "json",
        )

    def _request(self, value: Mapping[str, Any], parameters: tuple[Parameter, ...]) -> HttpRequest:
        return HttpRequest(
            url=value.get("url") or value["entrypoint"],
            method=value.get("method", "GET"),
            headers=value.get("headers", {}),
            query=value.get("query", {}),
            body=value.get("body"),
            parameters=parameters,
            timeout_seconds=value.get("timeout_seconds", self.defaults.get("timeout_seconds", 30.0)),
            follows_redirects=value.get("follow_redirects", False),
        )

    def _imported(
        self, document: Document, entrypoint: str, parameters: tuple[Parameter, ...]
    ) -> Callable[..., Any] | None:
        source, _, name = entrypoint.partition(":")
        path = self.folder / source
        is_file = source.endswith(".py")
        if is_file and not path.is_file():
            document.complain(f"There is no file {source} in the pack.", "entrypoint")
            return None
        if not self.imports:
            return with_parameters(_as_function(_not_imported), parameters)
        try:
            module = _module_of(self.app.name, path) if is_file else _module_named(self.folder, source)
            function = getattr(module, name or FUNCTION_DEFAULT)
        except AttributeError:
            document.complain(f"{source} has no function {name or FUNCTION_DEFAULT!r}.", "entrypoint")
            return None
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a pack's module may raise anything at import
            document.complain(f"{source} cannot be imported: {type(error).__name__}: {error}.", "entrypoint")
            return None
        if not callable(function):
            document.complain(f"{entrypoint} is not a function.", "entrypoint")
            return None
        found: Callable[..., Any] = function
        return found


_SOURCES = {
    "timeout_seconds": "timeout_seconds",
    "share": "breaker",
    "retries": "quota",
    "rules": "rules",
    "max_retries": "max_attempts",
}
"""The field of a file that usually causes a fault in the named option."""


def _rule(fields: Any) -> Any:
    from holdfast.core.tasks.classify import Rule

    try:
        return Rule(**fields)
    except TypeError:
        raise Invalid(
            "A rule is a map of exception, code, pattern, reason and retry.", code="invalid_policy", field="rules"
        ) from None


def _flat(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer of options with the policy fields moved out of `retry`; if written in both, the outer one wins."""
    retry = layer.get("retry")
    inside = retry if isinstance(retry, dict) else {}
    outside = {name: value for name, value in inside.items() if name in _ALSO_IN_RETRY}
    if "max_attempts" in layer:
        outside.pop("max_retries", None)
    return outside | dict(layer) | {"retry": {name: inside[name] for name in inside.keys() - outside.keys()}}


def _retries(merged: Mapping[str, Any], usual: int | None) -> int | None:
    """Return the retries that an action or its pack's defaults allow, whether written as retries or attempts."""
    attempts = merged.get("max_attempts")
    allowed: int | None = merged.get("max_retries", usual if attempts is None else retries_within(attempts))
    return allowed


def _as_function(call: Callable[..., Any], *, runtime: str | None = None) -> Callable[..., Any]:
    def run(ctx: Context, **task_input: Any) -> Any:
        return call(ctx, **task_input)

    # A replay reads this: such a function acts on the outside world when it is called.
    run.runtime = runtime  # type: ignore[attr-defined]
    return run


def _as_coroutine(call: Callable[..., Any]) -> Callable[..., Any]:
    async def run(ctx: Context, **task_input: Any) -> Any:
        return await call(ctx, **task_input)

    run.runtime = "http"  # type: ignore[attr-defined]
    return run


def _not_imported(_ctx: Context, **_given: Any) -> Any:
    raise AssertionError("this pack was only checked")


def _module_of(pack: str, path: Path) -> Any:
    """Return the module in a file of a pack, under a name that no other pack uses."""
    name = f"holdfast_pack_{pack}_{path.stem}".replace(".", "_").replace("-", "_")
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(path):
        return known
    _see(path.parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _module_named(folder: Path, name: str) -> Any:
    _see(folder)
    return importlib.import_module(name)


def _see(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
