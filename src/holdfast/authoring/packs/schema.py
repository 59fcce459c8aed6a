"""Schema of `pack.yaml` and `actions/*.yaml`.

Shapes are checked here, with the line of each mistake. The meaning of values (a policy, a breaker) is checked by the
same code that checks `@app.action`. All mistakes are found in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from keyword import iskeyword
from typing import Any
from urllib.parse import urlsplit

from holdfast.authoring.packs.document import Document
from holdfast.authoring.packs.parameters import FIELDS as PARAMETER_FIELDS
from holdfast.authoring.packs.parameters import KINDS, Parameter
from holdfast.authoring.packs.template import names_in

RUNTIMES = ("python", "shell", "http")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

TEXT, WHOLE, NUMBER, SWITCH, LIST, OBJECT, ANY = (
    "text",
    "a whole number",
    "a number",
    "true or false",
    "a list",
    "a map",
    "",
)
_TYPES: Mapping[str, tuple[type, ...]] = {
    TEXT: (str,),
    WHOLE: (int,),
    NUMBER: (int, float),
    SWITCH: (bool,),
    LIST: (list,),
    OBJECT: (dict,),
}

POLICY_FIELDS: Mapping[str, tuple[str, ...]] = {
    "queue": (TEXT,),
    "priority": (WHOLE,),
    "timeout_seconds": (NUMBER,),
    "max_retries": (WHOLE,),
    "max_attempts": (WHOLE,),
    "max_losses": (WHOLE,),
    "queue_ttl_seconds": (NUMBER,),
    "retry": (OBJECT,),
    "rules": (LIST,),
    "breaker": (OBJECT, SWITCH),
    "quota": (OBJECT, SWITCH),
    "launcher": (TEXT,),
}
PACK_FIELDS: Mapping[str, tuple[str, ...]] = {
    "name": (TEXT,),
    "version": (TEXT, NUMBER),
    "description": (TEXT,),
    "defaults": (OBJECT,),
}
ACTION_FIELDS: Mapping[str, tuple[str, ...]] = {
    "name": (TEXT,),
    "description": (TEXT,),
    "runtime": (TEXT,),
    "entrypoint": (TEXT, LIST),
    "parameters": (OBJECT,),
    **POLICY_FIELDS,
}
RUNTIME_FIELDS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "python": {"isolation": (TEXT,), "memory_bytes_max": (WHOLE,)},
    "shell": {
        "env": (OBJECT,),
        "inherit_env": (LIST,),
        "shell": (SWITCH,),
        "output": (TEXT,),
        "memory_bytes_max": (WHOLE,),
    },
    "http": {
        "url": (TEXT,),
        "method": (TEXT,),
        "headers": (OBJECT,),
        "query": (OBJECT,),
        "body": (ANY,),
        "follow_redirects": (SWITCH,),
    },
}


def check_pack(document: Document) -> None:
    """Record the problems of a `pack.yaml`."""
    if _is_object(document):
        _check_fields(document, document.value, PACK_FIELDS)
        if isinstance(document.value.get("defaults"), dict):
            _check_fields(document, document.value["defaults"], POLICY_FIELDS, "defaults")


def check_action(document: Document) -> tuple[Parameter, ...]:
    """Record the problems of an action's file; return its parameters."""
    if not _is_object(document):
        return ()
    value = document.value
    runtime = value.get("runtime", "python")
    if runtime not in RUNTIMES:
        document.complain(
            f"There is no runtime {runtime!r}.", "runtime", advice=_near(str(runtime), RUNTIMES, "There are")
        )
        return ()
    _check_fields(document, value, {**ACTION_FIELDS, **RUNTIME_FIELDS[runtime]})
    if "name" not in value:
        document.complain("The action has no name.", advice="Give it a `name`.")
    parameters = _parameters(document, value.get("parameters"))
    {"python": _check_python, "shell": _check_shell, "http": _check_http}[runtime](document, value, parameters)
    return parameters


def _is_object(document: Document) -> bool:
    if document.problems or isinstance(document.value, dict):
        return isinstance(document.value, dict)
    document.complain("The file is empty." if document.value is None else "The file must hold a map of fields.")
    return False


def _check_fields(
    document: Document, value: Mapping[str, Any], known: Mapping[str, tuple[str, ...]], *where: str | int
) -> None:
    for name, field_value in value.items():
        kinds = known.get(name)
        if kinds is None:
            advice = _near(name, tuple(known), "Known are")
            document.complain(f"There is no field {name!r} here.", *where, name, advice=advice)
        elif not any(_is_of(field_value, kind) for kind in kinds):
            document.complain(f"{name} must be {' or '.join(kinds)}, not {field_value!r:.60}.", *where, name)


def _is_of(value: Any, kind: str) -> bool:
    if kind == ANY:
        return True
    if isinstance(value, bool):
        return kind == SWITCH
    return isinstance(value, _TYPES[kind])


def _parameters(document: Document, specs: Any) -> tuple[Parameter, ...]:
    found = []
    for name, spec in specs.items() if isinstance(specs, dict) else ():
        where = ("parameters", name)
        fields = {"type": spec} if isinstance(spec, str) else spec
        if not name.isidentifier() or iskeyword(name) or name in ("ctx", "connection"):
            document.complain(f"{name!r} cannot be the name of a parameter.", *where)
        elif not isinstance(fields, dict) or not set(fields) <= set(PARAMETER_FIELDS):
            document.complain(f"{name} must be a type or a map of {', '.join(PARAMETER_FIELDS)}.", *where)
        elif fields.get("type", "any") not in KINDS:
            advice = _near(str(fields["type"]), tuple(KINDS), "There are")
            document.complain(f"{name} has the unknown type {fields['type']!r}.", *where, "type", advice=advice)
        else:
            is_required = fields.get("required", "default" not in fields)
            if not isinstance(is_required, bool):
                document.complain(f"{name}: required must be true or false.", *where, "required")
            found.append(
                Parameter(
                    name=name,
                    type=fields.get("type", "any"),
                    is_required=is_required is True and "default" not in fields,
                    default=fields.get("default"),
                )
            )
    return tuple(found)


def _check_python(document: Document, value: Mapping[str, Any], parameters: tuple[Parameter, ...]) -> None:
    entrypoint = value.get("entrypoint")
    if not isinstance(entrypoint, str) or not entrypoint.strip():
        document.complain(
            "A python action needs an entrypoint.",
            "entrypoint",
            advice="Write `file.py:function` or `module:function`.",
        )


def _check_shell(document: Document, value: Mapping[str, Any], parameters: tuple[Parameter, ...]) -> None:
    entrypoint, through_shell = value.get("entrypoint"), value.get("shell") is True
    if through_shell and (not isinstance(entrypoint, str) or not entrypoint.strip()):
        document.complain("With `shell: true` the entrypoint is one text for /bin/sh.", "entrypoint")
    elif not through_shell and not _is_command(entrypoint):
        document.complain(
            "A shell action needs an entrypoint: a command and its arguments.",
            "entrypoint",
            advice='Write a list like ["./backup.sh", "--full"], or one text for a command without arguments.',
        )
    elif not through_shell:
        _check_names(document, entrypoint, parameters, "entrypoint")
    elif any(names_in(entrypoint)):
        advice = 'Use "$HF_INPUT_NAME" there: a value inside a shell\'s text could become part of the command.'
        document.complain("With `shell: true` inputs cannot be filled into the text.", "entrypoint", advice=advice)
    if value.get("output", "text") not in ("text", "json"):
        document.complain("output must be text or json.", "output")
    for name, text in value["env"].items() if isinstance(value.get("env"), dict) else ():
        if not isinstance(text, str):
            document.complain(f"The variable {name} must be text.", "env", name, advice="Quote it.")
    for index, name in enumerate(value["inherit_env"] if isinstance(value.get("inherit_env"), list) else ()):
        if not isinstance(name, str):
            document.complain("Variables are inherited by name.", "inherit_env", index)


def _is_command(entrypoint: Any) -> bool:
    parts = [entrypoint] if isinstance(entrypoint, str) else entrypoint
    return isinstance(parts, list) and all(isinstance(part, str) for part in parts) and bool(parts and parts[0].strip())


def _check_http(document: Document, value: Mapping[str, Any], parameters: tuple[Parameter, ...]) -> None:
    field = "url" if "url" in value else "entrypoint"
    url = value.get(field)
    if not isinstance(url, str):
        document.complain("An http action needs a url.", field)
        return
    origin = url.partition("://")[2].partition("/")[0].partition("?")[0]
    parts = urlsplit(url.partition("${")[0] if "${" in url else url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        document.complain("The url must begin with http:// or https:// and a literal host.", field)
    elif any(names_in(origin)) or "${" in origin:
        advice = "An input that chooses the host could send the request anywhere."
        document.complain("The host of a url cannot come from the input.", field, advice=advice)
    elif parts.username is not None or parts.password is not None:
        document.complain("The url must not hold a password.", field, advice="Send it as a header.")
    if value.get("method", "GET") not in METHODS:
        document.complain(f"There is no method {value['method']!r}.", "method", advice=f"Use {', '.join(METHODS)}.")
    for name, text in value["headers"].items() if isinstance(value.get("headers"), dict) else ():
        if not isinstance(text, str):
            document.complain(f"The header {name} must be text.", "headers", name, advice="Quote it.")
    for name in (field, "headers", "query", "body"):
        _check_names(document, value.get(name), parameters, name)


def _check_names(document: Document, template: Any, parameters: tuple[Parameter, ...], *where: str) -> None:
    known = [parameter.name for parameter in parameters]
    for name in sorted(set(names_in(template)) - set(known)):
        advice = _near(name, tuple(known), "There are") if known else "Declare it under `parameters`."
        document.complain(f"${{{name}}} is not a parameter of this action.", *where, advice=advice)


def _near(name: str, known: tuple[str, ...], list_text: str) -> str:
    close = get_close_matches(name, known, n=1)
    return f"Did you mean {close[0]}?" if close else f"{list_text} {', '.join(known)}."
