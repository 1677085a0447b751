"""A group of commands that imports a command's module only when the command runs."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer._click.exceptions import NoSuchOption
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command as build_command

from fedrec.cli.terminal import AsJson, Result, show
from fedrec.errors import SettingsError

if TYPE_CHECKING:
    # typer carries its own copy of click, and exports these types only there.
    from typer._click.core import Command, Context
    from typer._click.formatting import HelpFormatter
    from typer._click.shell_completion import CompletionItem


ENTRY_POINTS = "fedrec.cli"
# Options that typer adds to every app. Only the whole command has them.
_COMPLETION = frozenset({"install_completion", "show_completion"})
_WORDS = {"int": "NUMBER", "float": "NUMBER", "str": "TEXT", "Path": "PATH"}
"""The words for types in help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A command and its location.

    Attributes:
        help: one sentence for the list of commands.
        panel: the heading under which the list shows it.
        target: ``module:name`` of a function, or of a `typer.Typer` with subcommands. Empty if an
            entry point names it.
    """

    help: str
    panel: str
    target: str = ""


class LazyGroup(TyperGroup):
    """List commands from `verbs`, and import only the one that is called.

    A verb without a target exists only if an installed package adds it with an entry point. A
    module may define its command's examples in a constant ``EPILOG``. If it has several commands,
    the constant of `stop` is ``STOP_EPILOG``.
    """

    verbs: ClassVar[Mapping[str, Verb]] = {}
    _is_listing = False

    def list_commands(self, ctx: Context) -> list[str]:
        """Return the names of the commands that exist."""
        added = _additions()
        own = [name for name, verb in self.verbs.items() if verb.target or name in added]
        return [*own, *(name for name in added if name not in self.verbs)]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Return a command, or only its name and summary while help is printed."""
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
        """Print help without importing the listed commands."""
        with self._listing():
            super().format_help(ctx, formatter)

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        """List the commands under the headings of `verbs`."""
        listed: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            if verb := self.verbs.get(name):
                listed.setdefault(verb.panel, []).append((name, verb.help))
        for panel, rows in listed.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name without importing commands."""
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._is_listing = True
        try:
            yield
        finally:
            self._is_listing = False

    def invoke(self, ctx: Context) -> Any:
        """Run the command. For an option of an earlier version, name its replacement."""
        try:
            return super().invoke(ctx)
        except NoSuchOption as error:
            path = "" if error.ctx is None else error.ctx.command_path.removeprefix("fedrec ")
            if now := self.replacement(path, error.option_name):
                raise SettingsError(
                    f"`fedrec {path}` no longer has {error.option_name}.", remedy=f"Use `{now}`."
                ) from None
            raise

    def replacement(self, command: str, option: str) -> str:
        """Return the replacement of an earlier version's option, or an empty text if unknown."""
        return ""

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Return the called command. For an unknown name, suggest similar commands."""
        names = self.list_commands(ctx)
        if args[0] not in names and (inside := self._inside(ctx, args[0])):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {', '.join(map(repr, inside))}?")
        # The inherited method takes its suggestions from these names.
        self.commands = dict.fromkeys(names, TyperCommand(None))
        return super().resolve_command(ctx, args)

    def _inside(self, ctx: Context, name: str) -> list[str]:
        """Return the subcommands of this name, as they are typed."""
        found: list[str] = []
        for verb in self.list_commands(ctx):
            # The packages that a verb needs may not be installed here.
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
    """Return the targets of the commands that installed packages add with entry points."""
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: point.value for point in points}


def beside_verb(verb: str, name: str) -> Any:
    """Return a function in the module of a verb that an installed package adds.

    Raises:
        ImportError: no package adds the verb, or something that it needs is missing.
    """
    target = _additions().get(verb)
    if target is None:
        raise ImportError(f"No installed package adds `fedrec {verb}`.")
    return getattr(importlib.import_module(target.partition(":")[0]), name)


@cache
def _load(name: str, target: str) -> Command:
    module_name, _, attribute = target.partition(":")
    module: Any = importlib.import_module(module_name)
    app = getattr(module, attribute)
    if not isinstance(app, typer.Typer):
        epilog = getattr(module, f"{attribute.upper()}_EPILOG", getattr(module, "EPILOG", None))
        function, app = app, typer.Typer(add_completion=False)
        app.command(name, epilog=epilog)(function)
    _let_answer(app)
    command = build_command(app)
    command.name = name
    _put_in_words(command)
    return command


def _let_answer(app: typer.Typer) -> None:
    """Print the results of commands that return a `Result`, and give them the option ``--json``."""
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _let_answer(group.typer_instance)
    for entry in app.registered_commands:
        if entry.callback is not None:
            entry.callback = _answering(entry.callback)


def _answering(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command, eval_str=True)
    if signature.return_annotation is not Result:
        return command

    parameters = dict(signature.parameters)
    # A command that prints while it works needs to know where its result goes.
    takes_it = parameters.pop("as_json", None)

    @wraps(command)
    def answered(*, as_json: bool, **given: Any) -> None:
        show(command(**given, **({"as_json": as_json} if takes_it else {})), as_json=as_json)

    switch = inspect.Parameter(
        "as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson
    )
    replace_parameters(answered, [*parameters.values(), switch])
    return answered


def replace_parameters(
    command: Callable[..., Any], parameters: Sequence[inspect.Parameter], answer: type | None = None
) -> None:
    """Give a function other parameters for typer than it has."""
    only_named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    signature = inspect.Signature(only_named, return_annotation=answer)
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in only_named}
    # Otherwise typer would read the wrapped function's parameters, which aren't flags.
    del command.__wrapped__  # type: ignore[attr-defined]


def _put_in_words(command: Any) -> None:
    """Make help fit any terminal without cutting text, and name types in words."""
    # Boxed tables cut text that doesn't fit.
    command.rich_markup_mode = None
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)
        # The list of commands would cut it.
        command.short_help = command.help.partition("\n\n")[0]
    if command.epilog:
        # Click keeps the lines after this mark as they are.
        command.epilog = f"\b\n{command.epilog.strip()}"
    command.params = [option for option in command.params if option.name not in _COMPLETION]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: ""
        elif parameter.metavar is None:
            kind = parameter.bare_type().removeprefix("list[").removesuffix("]")
            parameter.metavar = _WORDS.get(kind)
    for inner in getattr(command, "commands", {}).values():
        _put_in_words(inner)
