"""The command tree: groups that import their commands on use, and the common options of every command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeVar

import click

from holdfast.cli.ui.shell import INTERRUPTED, JSON, PLAIN, TABLE, Shell
from holdfast.errors import HoldfastError, Unavailable

F = TypeVar("F", bound=Callable[..., Any])


class Command(click.Command):
    """A command that also takes the common options, in any position."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        taken = {name for param in self.params for name in param.opts}
        self.params = [*self.params, *(param for param in common_options() if not taken & set(param.opts))]

    def invoke(self, ctx: click.Context) -> Any:
        shell = ctx.find_root().ensure_object(Shell)
        shell.options = frozenset(name for param in self.params for name in param.opts)
        return super().invoke(ctx)


class Group(click.Group):
    """A group whose commands take the common options."""

    command_class = Command


class Root(click.Group):
    """The root group: names, modules and summaries of all commands.

    It imports a command on use, and handles all errors.
    """

    def __init__(self, *args: Any, homes: Mapping[str, Mapping[str, tuple[str, str]]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = homes
        self.homes = {name: home for section in homes.values() for name, home in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.homes)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        home = self.homes.get(cmd_name)
        if home is None:
            return None
        module, _, name = home[0].partition(":")
        found = getattr(import_module(module), name)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], list(self.homes), n=1) if args else []
            if not near:
                raise
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {near[0]}?", ctx=ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(name, summary) for name, (_, summary) in commands.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            ctx.exit(ctx.obj.print_error(error))
        except (KeyboardInterrupt, click.Abort):
            ctx.obj.talk("Interrupted.")
            ctx.exit(INTERRUPTED)
        except Exception as error:
            if not type(error).__module__.startswith("asyncpg"):
                raise
            ctx.exit(ctx.obj.print_error(_refused(error)))


def common_options() -> list[click.Parameter]:
    """Return `--url`, `-o`, `--utc` and `--no-color`; each is set on the shell, none is passed to the command."""
    return [
        click.Option(
            ["--url"],
            metavar="URL",
            help="PostgreSQL, or a server as http(s)://…, to use instead of HOLDFAST_URL.",
            expose_value=False,
            callback=_tell("url"),
        ),
        click.Option(
            ["-o", "--output"],
            type=click.Choice([TABLE, JSON, PLAIN]),
            help="Output format; a piped table is printed as plain.",
            expose_value=False,
            callback=_tell("output"),
        ),
        click.Option(
            ["--utc"], is_flag=True, help="Show times in UTC.", expose_value=False, callback=_tell("utc"), default=None
        ),
        click.Option(
            ["--color/--no-color"],
            default=None,
            help="Force colour on or off.",
            expose_value=False,
            callback=_tell("wants_colour"),
        ),
    ]


def _tell(name: str) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def tell(ctx: click.Context, _param: click.Parameter, value: Any) -> Any:
        shell = ctx.find_root().ensure_object(Shell)
        if value is not None:
            setattr(shell, name, value)
        return value

    return tell


def _refused(error: Exception) -> HoldfastError:
    return Unavailable(
        f"PostgreSQL refused: {' '.join(str(error).split()).rstrip('.')}.",
        code="database_error",
        advice="See `holdfast doctor`.",
    )
