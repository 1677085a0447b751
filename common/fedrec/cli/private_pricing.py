"""What users' private tables take: memory while they fit, else files, and room for these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedrec.cli.terminal import human_bytes
from fedrec.model.block_folder import BlockFolder
from fedrec.model.tables import BLOCKS, room_on_disk, table_bytes
from fedrec.plan.algorithm import algorithm_of
from fedrec.settings.schema import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivatePrice:
    """What a machine needs for these users' tables.

    Attributes:
        table_bytes: one version of all of them.
        memory_bytes: what may lie in memory, `client.memory_mib`.
        disk_bytes: what a run needs on disk; 0 where the tables fit memory.
        free: what is free now by the setting whose folder is meant, of those that need more.
    """

    n_users: int
    table_bytes: int
    memory_bytes: int
    disk_bytes: int
    free: dict[str, int]

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield what a table says of them."""
        if not self.table_bytes:
            return
        each = human_bytes(self.table_bytes / self.n_users)
        yield "private tables", f"{human_bytes(self.table_bytes)}, {each} of each user"
        if self.disk_bytes:
            limit = self.memory_bytes >> 20
            yield (
                "they lie in files",
                f"being larger than client.memory_mib = {limit}; a run keeps up to "
                f"{human_bytes(self.disk_bytes)} in output.runs, a client in client.state",
            )

    def warnings(self) -> Iterator[str]:
        """Yield what is missing."""
        for setting, free in self.free.items():
            yield (
                f"{setting}: private tables take up to {human_bytes(self.disk_bytes)} there, and "
                f"{human_bytes(free)} are free. Free some, choose another folder, or raise "
                f"client.memory_mib above {self.table_bytes >> 20}."
            )


def private_price(settings: Settings, n_users: int, n_items: int) -> PrivatePrice:
    """Return what the tables of these users take on this machine."""
    size = table_bytes(n_users, algorithm_of(settings.plan, n_items).private_widths)
    memory = settings.client.memory_mib << 20
    disk = room_on_disk(size) if size > memory else 0
    folders = {"output.runs": settings.output.runs, "client.state": settings.client.state}
    free = {
        setting: BlockFolder.at(Path(folder) / BLOCKS).room()[1]
        for setting, folder in folders.items()
    }
    return PrivatePrice(
        n_users=n_users,
        table_bytes=size,
        memory_bytes=memory,
        disk_bytes=disk,
        free={setting: found for setting, found in free.items() if found < disk},
    )
