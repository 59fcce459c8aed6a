"""What every command shares: the common options, clients, and error output.

Data goes to stdout, messages to stderr. An error says what happened and what to do, with its code; the exit code
identifies its kind for scripts. Heavy modules are imported only when a command needs them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any, TypeVar

import click

from holdfast.errors import Conflict, HoldfastError, Invalid, NotFound, WaitTimeout

if TYPE_CHECKING:
    from holdfast.authoring.app import App
    from holdfast.client.client import Client
    from holdfast.operations.client import OperationClient
    from holdfast.operations.operation import Operation
    from holdfast.settings.settings import Settings

T = TypeVar("T")
A = TypeVar("A")

OK, FAILED, USAGE, NOT_FOUND, AUTH, CONFLICT, TIMEOUT = range(7)
"""The exit codes."""

INTERRUPTED = 130
"""The exit code by which shells report Ctrl-C; it says nothing about the outcome of what the command waited for."""

TABLE, JSON, PLAIN = "table", "json", "plain"


class Shell:
    """One invocation of the command line."""

    def __init__(self) -> None:
        self.url: str | None = None
        self.output: str | None = None
        self.utc = False
        self.wants_colour: bool | None = None
        self.options: frozenset[str] = frozenset()
        """The options of the running command, as they are typed."""

    @property
    def is_json(self) -> bool:
        return self.output == JSON

    @property
    def is_table(self) -> bool:
        """Whether to print tables: on a terminal, or on request."""
        return self.output == TABLE or (self.output is None and sys.stdout.isatty())

    def has_colour(self, stream: Any = None) -> bool:
        """Return whether to use colour: only on a terminal, unless NO_COLOR or --color/--no-color say otherwise."""
        if self.wants_colour is not None:
            return self.wants_colour
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
            return False
        return bool((stream or sys.stdout).isatty())

    def settings(self, **overrides: Any) -> Settings:
        from holdfast.settings.settings import Settings

        return Settings.load(os.environ, url=self.url, **overrides)

    def client(self) -> Client:
        """Return a client with direct database access, for commands without an operation."""
        from holdfast.client.client import Client

        return Client(self.settings(), {})

    def operation_client(self) -> OperationClient:
        """Return a client for a server if the URL is a server's, else for the database."""
        from holdfast.net.server_url import is_server

        settings = self.settings()
        if settings.url is not None and is_server(settings.url):
            from holdfast.operations.http_client import HttpClient

            dev_user = user_name() if settings.is_local else None
            return HttpClient(settings.url, token=settings.token, dev_user=dev_user)
        from holdfast.client.client import Client
        from holdfast.operations.client import LocalClient

        return LocalClient(Client(settings, {}), actor())

    def retrying_client(self, timeout: str | None = None) -> OperationClient:
        """Return a client for watching: outages are reported, and waited out after the first response."""
        from holdfast.operations.retrying_client import RetryingClient

        return RetryingClient(self.operation_client(), self.talk, timeout)

    def ask(self, operation: Operation[Any, A], request: Any) -> A:
        """Execute one operation."""

        async def once() -> A:
            async with self.operation_client() as operation_client:
                return await operation_client.ask(operation, request)

        return self.run(once())

    def ask_all(self, operation: Operation[Any, A], request: Any, rows: Callable[[A], list[T]]) -> list[T]:
        """Return all rows of a list of names, page by page."""

        async def pages() -> list[T]:
            async with self.operation_client() as operation_client:
                return await all_of(operation_client, operation, request, rows)

        return self.run(pages())

    def ask_enough(
        self, operation: Operation[Any, A], request: Any, rows: Callable[[A], list[T]]
    ) -> tuple[list[T], str | int | None]:
        """Return rows of as many pages as the limit needs, and where the rest begins."""

        async def pages() -> tuple[list[T], str | int | None]:
            async with self.operation_client() as operation_client:
                return await enough_of(operation_client, operation, request, rows)

        return self.run(pages())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        import asyncio

        return asyncio.run(work)

    def talk(self, message: str, *, bold: bool = False) -> None:
        """Print a message to stderr, separate from the data."""
        styled = click.style(message, bold=True) if bold and self.has_colour(sys.stderr) else message
        click.echo(styled, err=True, color=self.has_colour(sys.stderr))

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """Show on a terminal that something takes time."""
        if self.is_json or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console

        with Console(stderr=True, no_color=not self.has_colour(sys.stderr)).status(what):
            yield

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Redirect prints of user code to stderr where a program may read stdout."""
        if self.is_table:
            yield
            return
        with redirect_stdout(sys.stderr):
            yield

    def load_app(self, ref: str, packs: Sequence[str] = ()) -> App:
        """Load an app; what it prints while loading is not data."""
        from holdfast.authoring.loader import load_app

        with self.aside():
            return load_app(ref, packs)

    def print_error(self, error: HoldfastError) -> int:
        """Print an error to stderr and return its exit code."""
        detail, advice = self._as_typed(error.detail), self._as_typed(error.advice)
        if self.is_json:
            body = {"error": {**error.fields, "code": error.code, "detail": detail, "advice": advice}}
            click.echo(json.dumps(body, ensure_ascii=False, default=str), err=True)
        else:
            label = click.style("error:", fg="red", bold=True) if self.has_colour(sys.stderr) else "error:"
            click.echo(f"{label} {detail} [{error.code}]", err=True, color=self.has_colour(sys.stderr))
            if advice:
                click.echo(f"  → {advice}", err=True)
        return exit_code(error)

    def _as_typed(self, text: str) -> str:
        """Return a message with fields of an operation, in backticks, replaced by the options of the command."""

        def typed(found: re.Match[str]) -> str:
            option = f"--{found[1].replace('_', '-')}"
            return option if option in self.options else found[0]

        return re.sub(r"`([a-z_]+)`", typed, text)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before destructive work; without a terminal, --yes is required."""
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Invalid(question, code="confirmation_needed", advice="Repeat the command with --yes.")
        if not click.confirm(question, err=True):
            raise click.exceptions.Exit(USAGE)


def exit_code(error: HoldfastError) -> int:
    """Return the exit code for the kind of error."""
    if error.category == "auth":
        return AUTH
    match error:
        case WaitTimeout():
            return TIMEOUT
        case Invalid():
            return USAGE
        case NotFound():
            return NOT_FOUND
        case Conflict():
            return CONFLICT
        case _:
            return FAILED


def the_shell() -> Shell:
    """Return the shell of the running command."""
    shell = click.get_current_context().find_root().obj
    assert isinstance(shell, Shell)
    return shell


async def all_of(
    operation_client: OperationClient, operation: Operation[Any, Any], request: Any, rows: Callable[[Any], list[T]]
) -> list[T]:
    """Return every row of a list that is read in pages, each `after` the previous."""
    import msgspec

    found: list[T] = []
    while True:
        page = await operation_client.ask(operation, request)
        found += rows(page)
        if page.next is None:
            return found
        request = msgspec.structs.replace(request, after=page.next)


async def enough_of(
    operation_client: OperationClient, operation: Operation[Any, Any], request: Any, rows: Callable[[Any], list[T]]
) -> tuple[list[T], str | int | None]:
    """Return rows of consecutive pages until the limit or the end is reached, and the next cursor."""
    import msgspec

    cursor = "before" if "before" in operation.other_fields else "after"
    page = await operation_client.ask(operation, request)
    found = list(rows(page))
    while page.next is not None and len(found) < request.limit:
        more = msgspec.structs.replace(request, **{cursor: page.next, "limit": request.limit - len(found)})
        page = await operation_client.ask(operation, more)
        found += rows(page)
    return found, page.next


def actor() -> str:
    """Return the user's name as the audit log shows it."""
    return f"cli:{user_name()}"


def user_name() -> str:
    """Return the name of the user."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"
