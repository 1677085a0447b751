"""What an audit of the wire found, for people and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fedrec_lab.audit.wire.epochs import RosterSource
from fedrec_lab.audit.wire.findings import Finding

__all__ = ["ClientRow", "EpochRow", "WireReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRow:
    """What was seen of one client.

    Attributes:
        client_id: its fingerprint; empty for callers that gave none.
        calls: how many calls it made.
        sent, received: bytes of its messages.
        updates: updates that it sent.
        readable_updates: how many of them were readable.
    """

    client_id: str
    calls: int
    sent: int
    received: int
    updates: int
    readable_updates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRow:
    """What was seen of one key epoch.

    Attributes:
        roster: where its roster is from; "not given" where the audit does not have it.
        members: how many the roster lists, 0 without it.
        rotated: whether a later epoch began, with which its members destroyed its secrets.
        messages: how many messages name it.
        outsiders: how many of them are signed by somebody whom its roster does not list.
        updates, readable_updates, readable_values: updates for its rounds.
    """

    epoch: int
    roster: RosterSource
    members: int
    rotated: bool
    messages: int
    outsiders: int
    updates: int
    readable_updates: int
    readable_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WireReport:
    """What passed a coordinator and what lies with it, and whether promises held.

    Attributes:
        recordings: files that were read; 0 where only the folder was looked at.
        messages, n_bytes: of the recorded calls.
        context_bytes: length of the protection's context.
        context_problem: why it may hold a key; empty where it holds none.
        updates, readable_updates, readable_values: updates that travelled, how many of them were
            readable without any key, and how many values they had.
        clear_indices: values of an update whose indices anybody reads, because the plan says so.
        kept_updates: updates of single clients in the folder.
        published, published_bytes: published sums in the folder, and whether they were readable.
        clients, epochs: the traffic by client, and by the key epoch that it names.
        searched: what was looked for, and how much of it.
        found: what of it was found, where, and how often.
        problems: every promise that was broken.
        notes: what the audit could not look at.
    """

    protection: str
    recordings: int
    messages: int
    n_bytes: int
    context_bytes: int
    context_problem: str
    updates: int
    readable_updates: int
    readable_values: int
    clear_indices: int
    kept_updates: int
    published: int
    published_bytes: int
    published_readable: int
    searched: dict[str, int]
    found: dict[str, int]
    findings: tuple[Finding, ...]
    clients: tuple[ClientRow, ...]
    epochs: tuple[EpochRow, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether every promise held."""
        return not self.problems

    def sentences(self) -> list[str]:
        """Return the summary for people to read."""
        key = "no key" if not self.context_problem else "PERHAPS A KEY"
        lines = [f"Key material: a context of {self.context_bytes} bytes, which holds {key}."]
        if self.recordings:
            lines.append(
                f"Passed: {self.messages:,} messages, {self.n_bytes / 2**20:.1f} MiB. Updates of "
                f"single clients: {self.updates}, {self._readable()}."
            )
        if self.clear_indices:
            lines.append(
                f"Indices in the clear: {self.clear_indices} of every update after the count, "
                'because update.indices is "clear". They name what the client\'s user touched.'
            )
        if len(self.epochs) > 1:
            numbers = ", ".join(str(row.epoch) for row in self.epochs)
            lines.append(
                f"Key epochs {numbers}: each message was held against the one that it names. No "
                "secret of any of them is needed or here; those that rotated away were destroyed."
            )
        content = "readable" if self.published_readable else "not readable without a client's key"
        lines.append(
            f"Stored: {self.published} published sums, {self.published_bytes / 2**20:.1f} MiB, "
            f"{content}; updates of single clients: {self.kept_updates}; who took part and when."
        )
        for what, count in sorted(self.searched.items()):
            hits = sum(hits for name, hits in self.found.items() if name.startswith(what))
            lines.append(f"Searched for {what} ({count:,} pieces): found {hits} times.")
        lines += self.notes
        if self.holds:
            lines.append(f"Every promise about {self.protection} held.")
        else:
            lines.append(f"BROKEN PROMISES: {len(self.problems)}.")
            lines += [f"- {problem}" for problem in self.problems]
        return lines

    def to_json(self) -> dict[str, object]:
        """Return everything under stable keys."""
        return {**asdict(self), "holds": self.holds}

    def summary(self) -> dict[str, object]:
        """Return `to_json` without the row of each field."""
        return {key: value for key, value in self.to_json().items() if key != "findings"}

    def _readable(self) -> str:
        if not self.updates:
            return "none travelled"
        if not self.readable_updates:
            return "none readable"
        every = "every one" if self.readable_updates == self.updates else f"{self.readable_updates}"
        return f"{every} readable, {self.readable_values:,} values"
