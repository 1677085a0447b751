"""Format prices as tables for people and as JSON for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedrec.cli.terminal import TextTable, count_of, human_bytes, human_share
from fedrec.plan.price import ParameterSet, private_price
from fedrec.plan.protections import described
from fedrec.plan.sizing import FITTED

if TYPE_CHECKING:
    from fedrec.plan.price import ExpectedFacts, OpeningFacts, RunFacts, TableFacts
    from fedrec.plan.protections import Price
    from fedrec.plan.sizing import SizeFacts
    from fedrec.settings.schema import Settings


def priced(found: Price[RunFacts]) -> dict[str, object]:
    """Return the price of a run as JSON."""
    counting, paper = found.parts["count"], found.facts["paper_numbers"]
    steps, expected, opening = map(found.parts.get, ("steps", "expected", "opening"))
    return {
        **_of_run(found),
        "protection": asdict(found.facts["protection"]),
        "paper_numbers": paper and asdict(paper),
        "count_upload_bytes": counting.up_bytes,
        "count_download_bytes": counting.down_bytes,
        "authority_download_bytes": found.authority_bytes,
        "expected": expected and _of_run(expected),
        "opening": opening and opening.facts,
        # Scripts know a round's steps by this name.
        "masks": steps
        and {"up_bytes": steps.up_bytes, "down_bytes": steps.down_bytes, **steps.facts},
    }


def _of_run(found: Price[RunFacts] | Price[ExpectedFacts]) -> dict[str, object]:
    return {
        **found.facts,
        "upload_bytes": found.up_bytes,
        "download_bytes": found.down_bytes,
        "total_bytes": found.total_bytes,
    }


def price_tables(
    found: Price[RunFacts], rows: list[tuple[str, str]], sets: tuple[ParameterSet, ...]
) -> Iterator[TextTable]:
    """Yield the price of a run, its protection's parameters, and the price of other protections."""
    clients_text = count_of(found.facts["n_clients"], "client")
    yield TextTable(rows=rows, title=f"\nThe price, with {clients_text} in each round")
    words = described(found.facts["protection"])
    yield TextTable(rows=words, title="\nThe protection's parameters")
    yield TextTable(
        rows=map(_set_row, sets),
        title="\nAll parameter sets (protection.name, protection.preset). * marks the chosen one",
        headers=("", "set", "upload", "per value", "security", "modulus", "to spare"),
    )


def _set_row(entry: ParameterSet) -> tuple[str, ...]:
    """Return a parameter set's row, with a mark on the chosen one."""
    mark = "*" if entry.chosen else ""
    name = f"{entry.protection}, {entry.preset}"
    if entry.problem:
        return (mark, name, "cannot", "", "", "", entry.problem)
    security, modulus, spare = "none", "", ""
    if entry.security_bits:
        security = f"{entry.security_bits} bits"
    if entry.key_bits:
        modulus = f"{entry.key_bits} bits"
    elif entry.modulus_bits:
        modulus = f"{entry.modulus_bits} of at most {entry.most_modulus_bits} bits"
        spare = f"{entry.headroom_bits:.1f} bits"
    size = human_bytes(entry.message_bytes)
    return (mark, name, size, f"{entry.bytes_per_value:.2f} B", security, modulus, spare)


def price_rows(found: Price[RunFacts], source: str) -> Iterator[tuple[str, str]]:
    """Yield the price of a run as rows of a table.

    Args:
        source: the source of the number of items.
    """
    facts, parts, upload = found.facts, found.parts, found.up_bytes
    counting = parts["count"]
    yield "items", f"{facts['n_items']}, from {source}"
    yield (
        "upload, at most",
        f"{human_bytes(upload)} per client and round, if {facts['n_rows']} item rows travel",
    )
    yield "download, at most", f"{human_bytes(found.down_bytes)} per client and round"
    yield "count round", f"{_up_and_down(counting)} per client"
    if "expected" in parts:
        yield from _expected_rows(parts["expected"])
    if "steps" in parts:
        steps = parts["steps"]
        yield from steps.rows
        size = f"{_up_and_down(steps)} per client and round"
        yield steps.name, f"{size}, as part of upload and download"
    if facts["is_encrypted"]:
        opened = "by every client, of the ciphertext sum that it downloads"
        if found.authority_bytes:
            opened = f"by the key authority alone, {human_bytes(found.authority_bytes)} down"
        yield "opening a round", opened
    # If all of an algorithm's tables are private, nothing trained is shared.
    if dense := facts["dense_plain_bytes"]:
        share = human_share(upload, dense)
        yield (
            "upload, dense plain",
            f"{human_bytes(dense)} (float32). This upload is {share} of it",
        )
    if dense := facts["dense_paper_bytes"]:
        share = human_share(upload, dense)
        yield "upload, dense ckks/paper", f"{human_bytes(dense)}. This upload is {share} of it"
    if "opening" in parts:
        yield from _opening_rows(parts["opening"])
    if paper := facts["paper_numbers"]:
        minutes = f"{facts['paper_link_minutes']:.2f} min for all training rounds"
        sizes = f"{paper.upload} numbers up and {paper.download} down, in the clear"
        yield "time by the paper's link model", f"{minutes}: {sizes}"
    total = human_bytes(found.total_bytes)
    rounds = facts["n_rounds"]
    yield "whole run, at most", f"{total} in both directions over {rounds} rounds"


def _up_and_down(found: Price[Any]) -> str:
    return f"{human_bytes(found.up_bytes)} up and {human_bytes(found.down_bytes)} down"


def _opening_rows(opening: Price[OpeningFacts]) -> Iterator[tuple[str, str]]:
    facts = opening.facts
    sent = f"{facts['entries']} of {facts['n_places']} values, their indices in the clear"
    yield "in an upload", sent
    union = f"{facts['expected_entries']} of at most {facts['most_entries']} entries"
    yield "in a sum, expected", f"{union}, {human_bytes(facts['sum_bytes'])}"
    waits = "The round waits for it"
    if facts["report_seconds"] is not None:
        waits = f"The round waits {facts['report_seconds']:.0f} s for clients' reports"
    yield "opening a sum, at most", f"{facts['seconds']:.0f} s on a slow machine and line. {waits}"


def _expected_rows(expected: Price[ExpectedFacts]) -> Iterator[tuple[str, str]]:
    n_active, n_rows = expected.facts["n_active"], expected.facts["n_rows"]
    yield (
        "items trained, expected",
        f"{n_active} by data.path alone, which travel as {n_rows} rows",
    )
    up, down = human_bytes(expected.up_bytes), human_bytes(expected.down_bytes)
    yield "upload, download, expected", f"{up} and {down} per client and round"
    yield "whole run, expected", f"{human_bytes(expected.total_bytes)} in both directions"


def sizing_content(needed: tuple[Price[SizeFacts], ...]) -> dict[str, object]:
    """Return the size of each party's machine as JSON."""
    return {
        each.name: {**each.facts, "up_bytes": each.up_bytes, "down_bytes": each.down_bytes}
        for each in needed
    }


def sizing_table(
    needed: tuple[Price[SizeFacts], ...], own_users: int, found: Price[RunFacts]
) -> Iterator[str | TextTable]:
    """Yield the size of each party's machine."""
    clients = count_of(found.facts["n_clients"], "client")
    yield TextTable(
        rows=[
            (
                each.name,
                "unknown" if memory is None else human_bytes(memory),
                human_bytes(each.facts["disk_bytes"]),
                human_bytes(each.up_bytes),
                human_bytes(each.down_bytes),
                "unknown" if memory is None else f"{each.facts['processor_seconds']:.2f} s",
            )
            for each in needed
            for memory in (each.facts["memory_bytes"],)
        ],
        title=f"Sizes, with {clients} in each round, {count_of(own_users, 'user')} at each and "
        f"{count_of(found.facts['n_items'], 'item')}",
        headers=("party", "memory", "disk", "sent", "received", "processor"),
    )
    yield "\nBytes and processor time of one core are those of a round. Disk is that of the whole"
    yield "run, without data files and coordinator.reserve_bytes. A client also trains and"
    yield "measures: `fedrec simulate` with its users and one round shows how long that takes."
    if any(each.facts["memory_bytes"] is None for each in needed):
        yield f"\nUnknown memory and processor time: only {' and '.join(FITTED)} were measured."
        yield "Measure a run of a few rounds with as many clients and items."


def tables_price(settings: Settings, n_users: int, n_items: int) -> Price[TableFacts]:
    """Return the size of these users' private tables on this machine."""
    return private_price(
        settings.plan,
        n_users,
        n_items,
        memory_mib=settings.client.memory_mib,
        folders={"output.runs": settings.output.runs, "client.state": settings.client.state},
    )


def tables_rows(tables: Price[TableFacts]) -> Iterator[tuple[str, str]]:
    """Yield the size of users' private tables as rows of a table."""
    size, disk = tables.facts["table_bytes"], tables.facts["disk_bytes"]
    if not size:
        return
    each = human_bytes(size / tables.facts["n_users"])
    yield "private tables", f"{human_bytes(size)}, {each} for each user"
    if disk:
        limit = tables.facts["memory_bytes"] >> 20
        yield (
            "private tables on disk",
            f"larger than client.memory_mib = {limit}, so a run keeps up to {human_bytes(disk)} in "
            "output.runs, and a client in client.state",
        )


def tables_warnings(tables: Price[TableFacts]) -> Iterator[str]:
    """Yield a warning for each folder with too little space for users' private tables."""
    needed = human_bytes(tables.facts["disk_bytes"])
    for setting, free in tables.facts["free"].items():
        yield (
            f"{setting}: private tables need up to {needed} there, but only {human_bytes(free)} is "
            "free. Free some space, choose another folder, or raise client.memory_mib above "
            f"{tables.facts['table_bytes'] >> 20}."
        )


_SECONDS_THAT_PAY = 5.0
"""The shortest work of a round for which a cluster is faster than local workers."""
_SPLITS = 2


def ray_price(settings: Settings, n_users: int, n_items: int) -> float | None:
    """Return the time that one processor measures these users, if Ray and torch are used."""
    from fedrec.extras import is_missing

    if settings.client.engine != "ray" or not n_users or is_missing("torch"):
        return None
    from fedrec.training.executors.executor import seconds_of_ranking

    return _SPLITS * seconds_of_ranking(n_users, n_items)


def ray_rows(seconds: float | None, device: str) -> Iterator[tuple[str, str]]:
    """Yield the work for Ray, and what a worker takes for `client.device`, as rows of a table."""
    if seconds is not None:
        yield (
            "measuring, for Ray",
            f"about {seconds:.1f} s on one processor. Ray pays from about "
            f"{_SECONDS_THAT_PAY:.0f} s a round. It takes some seconds to start, and "
            "memory for torch in each worker",
        )
        import torch

        on_gpu = device.startswith("cuda") or (device == "auto" and torch.cuda.is_available())
        yield (
            "a worker of Ray",
            "takes a GPU, of this machine's kind" if on_gpu else "takes a processor, and no GPU",
        )


def ray_warnings(seconds: float | None) -> Iterator[str]:
    """Yield a warning if there is too little work for Ray."""
    if seconds is not None and seconds < _SECONDS_THAT_PAY:
        yield (
            f"client.engine: measuring these users takes about {seconds:.1f} s on one processor, "
            f"and Ray pays from about {_SECONDS_THAT_PAY:.0f} s. Unless their training takes much "
            'longer, client.engine = "local" is faster.'
        )
