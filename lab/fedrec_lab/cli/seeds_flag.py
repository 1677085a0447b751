"""The flag `--seeds`: how many, or which."""

from __future__ import annotations

from fedrec.errors import SettingsError

__all__ = ["seeds_of"]


def seeds_of(text: str, first: int) -> tuple[int, ...]:
    """Return a list of seeds as it stands, and for a single number so many from `first` on."""
    try:
        found = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = []
    if "," not in text and len(found) == 1 and 1 <= found[0] <= 1000:
        return tuple(range(first, first + found[0]))
    if "," not in text or not found or min(found) < 0 or len(set(found)) < len(found):
        raise SettingsError(
            f"--seeds is {text!r}.",
            remedy="Give a number from 1 to 1000, or different seeds separated by commas; a "
            "comma after it makes a list of one.",
        )
    return tuple(found)
