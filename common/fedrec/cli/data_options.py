"""The flags that say how a file of interactions is read: the same for every command that takes one.

They are made from the settings of the section `data`, so that a new one is one field there.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from pydantic import ValidationError

from fedrec.data.reading import DataSettings, flag_of
from fedrec.errors import DataError, SettingsError

if TYPE_CHECKING:
    from fedrec.data import Catalogue
    from fedrec.settings.schema import Settings

DataFlags = Mapping[str, object]
"""Which of the flags were given: names of settings of `data`, and their values."""

_NO_FLAGS = ("path", "catalogue")
_PARAMETER = "reading"
_FLAG_AND_SETTING = re.compile(r"--([a-z-]+) \(data\.([a-z_]+)\)")
DATA_FLAGS = tuple(name for name in DataSettings.model_fields if name not in _NO_FLAGS)
_ALL_PARTIES = ("minimum_item_interactions",)
"""What only somebody with all data could count, so that a client's commands have no such flag."""


def takes_data_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command a flag for each way to read a file, in place of its parameter `reading`.

    The command gets a `DataFlags` with what was given.
    """
    return _with_flags(command, DATA_FLAGS)


def takes_client_data_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a client's command the flags of `takes_data_flags` that one party's data can follow."""
    return _with_flags(command, [name for name in DATA_FLAGS if name not in _ALL_PARTIES])


def _with_flags(command: Callable[..., None], names: Sequence[str]) -> Callable[..., None]:
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name == _PARAMETER:
            parameters += map(_flag, names)
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def wrapped(**given: Any) -> None:
        flags = {name: given.pop(name) for name in names}
        given[_PARAMETER] = {name: value for name, value in flags.items() if value is not None}
        command(**given)

    changed = signature.replace(parameters=parameters)
    wrapped.__signature__ = changed  # type: ignore[attr-defined]
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    # Else typer would look behind the wrapper, at parameters that are no flags.
    del wrapped.__wrapped__
    return wrapped


def _flag(name: str) -> inspect.Parameter:
    """Return a setting as a parameter that typer makes a flag of."""
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


def data_settings(path: Path | str, flags: DataFlags) -> DataSettings:
    """Return the section `data` that flags spell.

    Raises:
        DataError: a value is not allowed.
    """
    try:
        return DataSettings.model_validate({"path": str(path), **flags})
    except ValidationError as error:
        from fedrec.settings.explain import all_settings

        wrong = {str(each["loc"][0]): each["input"] for each in error.errors()}
        known = all_settings()
        problems = (
            f"{flag_of(name)} is {value!r}, expected {known[f'data.{name}'].allowed}"
            for name, value in wrong.items()
        )
        raise DataError(
            f"{'; '.join(problems)}.",
            remedy="Correct that, or leave it out.",
            options=dict.fromkeys(wrong),
        ) from None


def flags_of(flags: DataFlags) -> str:
    """Return given flags as a command line has them, with a blank before each."""
    words = []
    for name, value in flags.items():
        flag = f"--{name.replace('_', '-')}"
        words += [flag] if value is True else [flag, str(value)]
    return "".join(f" {shlex.quote(word)}" for word in words)


def echo_note(note: str) -> None:
    """Tell what reading a file left out, beside the command's own output."""
    typer.echo(f"data: {note}.", err=True)


def corrected_command(command: Any, given: Sequence[str], options: Mapping[str, str | None]) -> str:
    """Return the command that failed with what an error of the data proposes; nothing if it cannot.

    Args:
        command: `fedrec` itself.
        given: its arguments.
        options: settings of `data` and their values; None for one to be left out.
    """
    names = _parameters_of(command, given)
    words = list(given)
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if name in names:
            kept = _without(words, flag)
            if value is None and kept == words:
                return ""  # a settings file has it, and no flag takes it away
            words = kept + ([] if value is None else [flag, value])
        elif "values" in names:
            words += ["--set", f"data.{name}={value or ''}"]
        else:
            return ""
    return shlex.join(["fedrec", *words])


def naming_own_flags(command: Any, given: Sequence[str], text: str) -> str:
    """Return an error's text in which no flag is named that the command given does not have.

    Args:
        command: `fedrec` itself.
        given: its arguments.
        text: settings of `data` stand in it as `fedrec.data.reading.flag_of` writes them.
    """
    names = _parameters_of(command, given)
    return _FLAG_AND_SETTING.sub(
        lambda found: found[0] if found[2] in names else f"data.{found[2]}", text
    )


def _parameters_of(command: Any, given: Sequence[str]) -> set[str]:
    """Return the names of the parameters of the verb that arguments name."""
    context = command.context_class(command, info_name="fedrec")
    for word in given:
        # typer's groups are no subclasses of click's own.
        if hasattr(command, "get_command"):
            command = command.get_command(context, word) or command
    return {str(parameter.name) for parameter in command.params}


def _without(words: list[str], flag: str) -> list[str]:
    """Leave a flag and its value out."""
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
    """Return the number of items and where it was found.

    Args:
        settings: name the catalogue, or else the data.
        items: a number that was given; it counts where the settings name no catalogue.
        known: the items of `data.path`, where it was read already.

    Raises:
        SettingsError: when nobody says it, or the catalogue has another number.
    """
    from fedrec.data import Catalogue
    from fedrec.data.source import kept_and_items, read_source

    data = settings.data
    if data.catalogue is not None:
        n_items = len(Catalogue.load(data.catalogue))
        if items and items != n_items:
            raise SettingsError(
                f"--items says {items}, but data.catalogue has {n_items} items.",
                remedy="Leave --items out.",
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
