"""Published results and how to reproduce them. Each row of a paper's table is one entry."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from fedrec.errors import SettingsError
from fedrec_lab.papers.personal_models import COFEDREC, GPFEDREC, PERFEDREC, PFEDGRAPH
from fedrec_lab.papers.personalised import FEDRAP, FEDRECGEL, PFEDCLR, PFEDREC, PLGC
from fedrec_lab.papers.row import PublishedRow, paper_plan
from fedrec_lab.papers.shared_tables import COLR, FEDMF, FEDNCF

__all__ = ["ROWS", "PublishedRow", "paper_plan", "rows_named"]

ROWS: Mapping[str, PublishedRow] = MappingProxyType(
    {
        row.name: row
        for rows in (
            PFEDREC,
            FEDMF,
            FEDNCF,
            FEDRAP,
            PFEDCLR,
            PLGC,
            GPFEDREC,
            PERFEDREC,
            COFEDREC,
            PFEDGRAPH,
            FEDRECGEL,
            COLR,
        )
        for row in rows
    }
)


def rows_named(name: str, rows: Mapping[str, PublishedRow] = ROWS) -> tuple[PublishedRow, ...]:
    """Return the row of this name, else all rows below it.

    Raises:
        SettingsError: there are none.
    """
    if name in rows:
        return (rows[name],)
    prefix = name.rstrip("/") + "/"
    found = tuple(row for key, row in rows.items() if key.startswith(prefix))
    if not found:
        raise SettingsError(
            f"There is no published row {name!r}.",
            remedy="`fedrec reproduce --list` shows them all.",
        )
    return found
