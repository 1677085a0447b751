"""What `fedrec data import NAME PATH` does and says."""

from __future__ import annotations

from pathlib import Path

import typer

from fedrec.cli.terminal import print_json
from fedrec.data import PUBLIC, Catalogue, import_public
from fedrec.data.writing import (
    CATALOGUE_FILE,
    INTERACTIONS_FILE,
    prepare_folder,
    write_interactions,
)


def print_import(
    name: str, path: Path, into: Path | None, *, strict: bool, force: bool, as_json: bool
) -> None:
    """Import a public data set into the cache and say what it is, and how it differs.

    Args:
        into: also write interactions.csv and catalogue.csv here.
        force: replace what is there, and the known copy in the cache by a file that differs.

    Raises:
        DataError: see `fedrec.data.import_public`.
    """
    if into is not None:
        prepare_folder(into, INTERACTIONS_FILE, CATALOGUE_FILE, force=force)
    imported = import_public(name, path, strict=strict, force=force)
    for sentence in (PUBLIC[name].licence, PUBLIC[name].citation, imported.copy.note):
        if sentence:
            typer.echo(sentence, err=True)
    for warning in imported.warnings:
        typer.echo(f"warning: {warning}", err=True)
    files = [imported.interactions_path, imported.catalogue_path]
    if into is not None:
        files = [into / INTERACTIONS_FILE, into / CATALOGUE_FILE]
        write_interactions(files[0], imported.interactions)
        Catalogue.load(imported.catalogue_path).save(files[1])
    minimum = imported.counts.minimum
    if as_json:
        content: dict[str, object] = {
            "name": name,
            "files": [str(file) for file in files],
            "layout": imported.report.layout,
            "sha256": imported.sha256,
            "known": not imported.warnings,
            "warnings": list(imported.warnings),
            "n_rows": imported.report.n_rows,
            "n_bad": imported.report.n_bad,
            "n_interactions": len(imported.interactions),
            "n_users": imported.interactions.n_users,
            "n_items": imported.interactions.n_items,
            "counted_minimum_interactions": minimum,
        }
        print_json(content)
        return
    typer.echo(f"{PUBLIC[name].title}, {imported.source_file}: {imported.counts}.")
    everybody = imported.interactions.n_users
    if everybody != imported.counts.users:
        typer.echo(
            f"The files hold all {everybody} users; for those that papers count set "
            f"data.minimum_interactions = {minimum}."
        )
    typer.echo(f"SHA-256 {imported.sha256}")
    for file in files:
        typer.echo(str(file))
