"""The flags of `fedrec data describe` and `import` for reading a file of interactions.

They are generated from the settings of the section `data`, so a new flag is one field there. Every
other command reads the data's description, the settings and the environment.
"""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from fedrec.cli.flags import words_of
from fedrec.cli.lazy import replace_parameters
from fedrec.data.reading import FLAG_AND_SETTING, DataSettings
from fedrec.errors import DataError, SettingsError

if TYPE_CHECKING:
    from fedrec.data import Catalogue
    from fedrec.settings.schema import Settings

DataFlags = Mapping[str, object]
"""The flags that were given, as names of settings of `data` with their values."""

_PARAMETER = "reading"
DATA_FLAGS = tuple(name for name in DataSettings.model_fields if name not in ("path", "catalogue"))


def takes_data_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command one flag for each way to read a file, in place of its parameter `reading`.

    The command receives a `DataFlags` with the given flags.
    """
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += map(_flag, DATA_FLAGS) if parameter.name == _PARAMETER else [parameter]

    @wraps(command)
    def wrapped(**given: Any) -> Any:
        flags = {name: given.pop(name) for name in DATA_FLAGS}
        given[_PARAMETER] = {name: value for name, value in flags.items() if value is not None}
        return command(**given)

    replace_parameters(wrapped, parameters, signature.return_annotation)
    return wrapped


def _flag(name: str) -> inspect.Parameter:
    """Return a setting as a parameter that typer turns into a flag."""
    field = DataSettings.model_fields[name]
    kind: Any = field.annotation
    kinds = [each for each in get_args(kind) if each is not NoneType] or [kind]
    is_switch = kinds[0] is bool
    flag = f"--{name.replace('_', '-')}"
    option = typer.Option(
        flag, help=f"data.{name}: {field.description}", rich_help_panel="Reading the file"
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[(bool if is_switch else kinds[0]) | None, option],
    )


def data_settings(path: Path | str, flags: DataFlags | None = None) -> DataSettings:
    """Return how to read a file: its description, overridden by flags.

    Raises:
        SettingsError: a value isn't allowed.
    """
    from fedrec.settings.validation import load_settings

    values = {f"data.{name}": value for name, value in (flags or {}).items()}
    return load_settings(values={"data.path": str(path), **values}, environ={}).data


def flags_of(flags: DataFlags) -> str:
    """Return given flags as on a command line, each after a blank."""
    return "".join(f" {shlex.quote(word)}" for word in words_of(flags))


def echo_note(note: str) -> None:
    """Print to stderr what reading a file left out."""
    typer.echo(f"data: {note}.", err=True)


def propose_command(error: DataError, command: Any, given: Sequence[str]) -> None:
    """Add a command that would work to an error, if it is known. Name only existing flags.

    Args:
        command: `fedrec` itself.
        given: its arguments.
    """
    from fedrec.cli.terminal import printable

    names = _parameters_of(command, given)
    error.message, error.remedy = (
        # Its settings are written as `fedrec.data.reading.flag_of` writes them.
        FLAG_AND_SETTING.sub(
            lambda found: found[0] if found[2] in names else f"data.{found[2]}", text
        )
        for text in (error.message, error.remedy)
    )
    ways = [error.options] if error.options else error.readings
    if len(ways) > 1:
        error.remedy += "\n  There is more than one way to read the file. Choose the right one:"
    for place, options in enumerate(ways):
        proposed = _corrected(names, given, options, error.file)
        error.remedy += f"\n  {'As in' if error.options else 'Either'}{proposed}"
        for row in () if error.options else error.first_rows[place]:
            error.remedy += f"\n    {printable(row)}"


def _corrected(
    names: set[str], given: Sequence[str], options: Mapping[str, str | None], file: str
) -> str:
    """Return the command that reads a file, or the settings if no command can give them.

    Args:
        names: the parameters of the command that failed.
        options: settings of `data` and their values, or None for a setting to omit.
        file: the file that was read.
    """
    words, has_command = list(given), True
    if not {"values", *options} & names and file:
        words = ["data", "describe", file, "--save"]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if "values" in names:
            words += ["--set", f"data.{name}={value or ''}"]
            continue
        kept = _without(words, flag)
        # A flag can't remove a setting of the description.
        has_command = has_command and (value is not None or kept != words)
        words = kept + ([] if value is None else [flag, value])
    if has_command:
        return f": {shlex.join(['fedrec', *words])}"
    settings = ", ".join(
        f"data.{name} = {value!r}" if value is not None else f"without data.{name}"
        for name, value in options.items()
    )
    return f" the settings: {settings}"


def _parameters_of(command: Any, given: Sequence[str]) -> set[str]:
    """Return the parameter names of the verb in the arguments."""
    context = command.context_class(command, info_name="fedrec")
    for word in given:
        # typer's groups aren't subclasses of click's own.
        if hasattr(command, "get_command"):
            command = command.get_command(context, word) or command
    return {str(parameter.name) for parameter in command.params}


def _without(words: list[str], flag: str) -> list[str]:
    """Return the arguments without a flag and its value."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == flag:
            skip = flag != "--strict"
        elif not word.startswith(f"{flag}="):
            kept.append(word)
    return kept


def catalogue_size(
    settings: Settings, items: int = 0, known: Catalogue | None = None
) -> tuple[int, str]:
    """Return the number of items and its source.

    Args:
        settings: settings that name the catalogue or the data.
        items: the given number, used if the settings name no catalogue.
        known: the items of `data.path`, if it was already read.

    Raises:
        SettingsError: the number is unknown, or the catalogue has a different number.
    """
    from fedrec.data import Catalogue
    from fedrec.data.source import kept_and_items, read_source

    data = settings.data
    if data.catalogue is not None:
        n_items = len(Catalogue.load(data.catalogue))
        if items and items != n_items:
            raise SettingsError(
                f"--items is {items}, but data.catalogue has {n_items} items.",
                remedy="Omit --items.",
            )
        return n_items, f"data.catalogue ({data.catalogue})"
    if items:
        return items, "--items"
    if data.path is None:
        raise SettingsError(
            "The number of items is unknown: neither data.catalogue nor data.path is set.",
            remedy="Set one of them, or give --items N.",
        )
    if known is None:
        _, known = kept_and_items(read_source(data, reader="the number of items"), data)
    return len(known), f"the items in data.path ({data.path})"
