"""A group of commands whose modules are imported only when one of them runs."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command as build_command

if TYPE_CHECKING:
    # typer carries its own copy of click, and names these types nowhere else.
    from typer._click.core import Command, Context
    from typer._click.formatting import HelpFormatter


ENTRY_POINTS = "fedrec.cli"
# Options that typer gives to every app of its own, and that only the whole command could have.
_COMPLETION = frozenset({"install_completion", "show_completion"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A command and where it is.

    Attributes:
        help: one sentence for the list of commands.
        panel: the heading under which the list shows it.
        target: ``module:name`` of a function, or of a `typer.Typer` with commands of its own;
            empty where an entry point names it.
    """

    help: str
    panel: str
    target: str = ""


class LazyGroup(TyperGroup):
    """Lists commands by what `verbs` says of them, and imports the one that is called.

    A verb without a target is there only if an installed package adds it by entry point. A
    module may hold its command's examples in a constant ``EPILOG``, or ``STOP_EPILOG`` for the
    function `stop` where it has several commands.
    """

    verbs: ClassVar[Mapping[str, Verb]] = {}
    _is_listing = False

    def list_commands(self, ctx: Context) -> list[str]:
        """Return the names of the commands that exist."""
        added = _additions()
        own = [name for name, verb in self.verbs.items() if verb.target or name in added]
        return [*own, *(name for name in added if name not in self.verbs)]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Return a command; while help is printed, only its name and sentence."""
        verb = self.verbs.get(cmd_name) or Verb(
            help=f"See `fedrec {cmd_name} --help`.", panel="Additions"
        )
        target = verb.target or _additions().get(cmd_name)
        if target is None:
            return None
        if self._is_listing:
            return TyperCommand(cmd_name, help=verb.help, rich_help_panel=verb.panel)
        return _load(cmd_name, target)

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Print help without importing what it lists."""
        self._is_listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._is_listing = False

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Find the command that was called; another is answered with what may have been meant."""
        names = self.list_commands(ctx)
        if args[0] not in names and (inside := self._inside(ctx, args[0])):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {', '.join(map(repr, inside))}?")
        # The names from which the inherited method takes its suggestions.
        self.commands = dict.fromkeys(names, TyperCommand(None))
        return super().resolve_command(ctx, args)

    def _inside(self, ctx: Context, name: str) -> list[str]:
        """Return the commands of this name that stand inside others, as they are typed."""
        found: list[str] = []
        for verb in self.list_commands(ctx):
            # What a verb needs may not be installed here.
            with suppress(ImportError):
                paths = _paths_to(name, self.get_command(ctx, verb))
                found += [f"{verb} {path}" for path in paths]
        return found


def _paths_to(name: str, command: Command | None) -> Iterator[str]:
    for inner, below in getattr(command, "commands", {}).items():
        if inner == name:
            yield inner
        yield from (f"{inner} {path}" for path in _paths_to(name, below))


@cache
def _additions() -> dict[str, str]:
    """Return the targets of the commands that installed packages add by entry point."""
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: point.value for point in points}


def _load(name: str, target: str) -> Command:
    module_name, _, attribute = target.partition(":")
    module: Any = importlib.import_module(module_name)
    found = getattr(module, attribute)
    if isinstance(found, typer.Typer):
        command = build_command(found)
    else:
        app = typer.Typer(add_completion=False)
        epilog = getattr(module, f"{attribute.upper()}_EPILOG", getattr(module, "EPILOG", None))
        app.command(name, epilog=epilog)(found)
        command = build_command(app)
    command.name = name
    _unwrap(command)
    command.params = [option for option in command.params if option.name not in _COMPLETION]
    return command


def _unwrap(command: Command) -> None:
    """Let paragraphs of help fit the terminal; typer does so with the first one only."""
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
    for inner in getattr(command, "commands", {}).values():
        _unwrap(inner)
