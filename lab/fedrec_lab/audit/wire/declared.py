"""Everything that may travel or be stored at a coordinator, and what is promised of it.

One table for messages, one for tables, one for files. What is found and not named here is a
broken promise, whatever its content: a new field has to be declared before it may travel.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

__all__ = [
    "BLOBS",
    "COLUMNS",
    "EVENT_KEYS",
    "FIELDS",
    "FILES",
    "KINDS",
    "Kind",
    "file_kind",
    "undeclared_event_keys",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What something that travels is.

    Attributes:
        promise: what the threat model says of it.
        one_length: whether all of its values have the same length from every sender.
        sealed: whether its bytes must look random to the coordinator: always, never, only where
            the protection hides updates, or only where it hides sums, too.
        of_epoch: whether every key epoch has its own, so that lengths are compared within one.
    """

    promise: str
    one_length: bool = False
    sealed: str = "never"
    of_epoch: bool = False


KINDS: dict[str, Kind] = {
    "identity": Kind(promise="who took part and when is seen: fingerprints of keys, no user's id"),
    "bookkeeping": Kind(promise="rounds, sizes, phases and times are seen"),
    "public": Kind(promise="plan, catalogue and roster are everybody's and hold no user's data"),
    "digest": Kind(promise="names bytes that travel, too", one_length=True),
    "keyed digest": Kind(promise="says nothing without the group key", one_length=True),
    "signature": Kind(promise="says who sent what, nothing else", one_length=True),
    "nonce": Kind(promise="random bytes that are used once", one_length=True),
    "epoch bundle": Kind(
        promise="a signed roster, a context without a key, and keys that only members unwrap"
    ),
    "context": Kind(
        promise="the protection's context holds no key", one_length=True, of_epoch=True
    ),
    "wrapped key": Kind(
        promise="opens with a member's own key only",
        one_length=True,
        sealed="always",
        of_epoch=True,
    ),
    "public key": Kind(promise="of one round under masks; opens nothing", one_length=True),
    "mask share": Kind(promise="shares for other clients, which only they open", sealed="always"),
    "mask secret": Kind(
        promise="a client's shares of masks: enough of them take the masks off the sum, not off "
        "one update"
    ),
    "masks": Kind(promise="who takes part in a round under masks, and shares that others open"),
    "metrics": Kind(promise="sums over all clients of a round, once it is published"),
    "update": Kind(
        promise="one client's update: readable under none, under nothing else",
        one_length=True,
        sealed="updates",
    ),
    "unfinished update": Kind(
        promise="what has arrived of an update, until its round is over", sealed="updates"
    ),
    "sum": Kind(
        promise="a round's sum: a ciphertext where it is opened elsewhere",
        one_length=True,
        sealed="sums",
    ),
    "published sum": Kind(
        promise="a ciphertext, or sealed for the members, where it is opened elsewhere",
        sealed="sums",
    ),
    "snapshot": Kind(
        promise="sealed for the members where sums are opened elsewhere", sealed="sums"
    ),
    "words": Kind(promise="the coordinator's own words to clients and operators"),
}

_HEADER = {
    "protocol_version": "public",
    "federation": "public",
    "run": "bookkeeping",
    "round": "bookkeeping",
    "epoch": "bookkeeping",
    "client_id": "identity",
    "catalogue_fingerprint": "public",
    "plan_fingerprint": "public",
    "length": "bookkeeping",
    "digest": "digest",
    "signature": "signature",
    "kind": "bookkeeping",
    "base_round": "bookkeeping",
    "base_state": "keyed digest",
    "key_list": "digest",
    "nonce": "nonce",
    "n_rows": "bookkeeping",
    "rows_digest": "keyed digest",
}
_STATEMENT = {
    "federation": "public",
    "run": "bookkeeping",
    "round": "bookkeeping",
    "epoch": "bookkeeping",
    "client_id": "identity",
    "manifest_digest": "digest",
    "state_tag": "keyed digest",
    "published_digest": "digest",
    "metrics": "metrics",
    "n_rows": "bookkeeping",
    "rows_digest": "keyed digest",
    "refused": "words",
    "paused": "bookkeeping",
    "signature": "signature",
    "sequence": "bookkeeping",
    "previous": "digest",
    "kind": "bookkeeping",
    "trained": "bookkeeping",
    "charged": "bookkeeping",
}
_REPORT = {
    "federation": "public",
    "run": "bookkeeping",
    "round": "bookkeeping",
    "epoch": "bookkeeping",
    "client_id": "identity",
    "state_tag": "keyed digest",
    "metrics": "metrics",
    "n_rows": "bookkeeping",
    "rows_digest": "keyed digest",
    "signature": "signature",
}
_MESSAGES: dict[str, dict[str, str]] = {
    "UploadHeader": _HEADER,
    "RevealStatement": _STATEMENT,
    "Report": _REPORT,
    "BlobHeader": {"length": "bookkeeping", "digest": "digest"},
    # What a chunk's data are depends on the call: see BLOBS.
    "Chunk": {"offset": "bookkeeping"},
    "UploadReceipt": {"round": "bookkeeping", "duplicate": "bookkeeping"},
    "RoundReceipt": {"round": "bookkeeping"},
    "ApplyRequest": {"application": "public"},
    "Application": {"epoch": "bookkeeping", "listed": "bookkeeping", "certificate": "public"},
    "GetFederationRequest": {"protocol_version": "public", "client_id": "identity"},
    "Federation": {
        "protocol_version": "public",
        "federation": "public",
        "run": "bookkeeping",
        "plan_json": "public",
        "catalogue_fingerprint": "public",
        "n_items": "public",
        "epoch": "bookkeeping",
        "roster_json": "public",
        "server_context": "context",
        "wrapped_secrets": "wrapped key",
        "published_round": "bookkeeping",
    },
    "GetCatalogueRequest": {"client_id": "identity"},
    "NextTaskRequest": {
        "client_id": "identity",
        "run": "bookkeeping",
        "version": "bookkeeping",
        "wait_seconds": "bookkeeping",
        "acknowledged_round": "bookkeeping",
        "acknowledged_digest": "digest",
    },
    "Wait": {"reason": "words", "about": "bookkeeping"},
    "Train": {
        "round": "bookkeeping",
        "kind": "bookkeeping",
        "base_round": "bookkeeping",
        "seconds_left": "bookkeeping",
        "epoch": "bookkeeping",
    },
    "Reveal": {
        "round": "bookkeeping",
        "kind": "bookkeeping",
        "base_round": "bookkeeping",
        "epoch": "bookkeeping",
    },
    "MakeSnapshot": {"round": "bookkeeping"},
    "Finished": {"reason": "words", "failed": "bookkeeping"},
    "Task": {"published_round": "bookkeeping", "epoch": "bookkeeping"},
    "Latest": {},
    "UploadStatusRequest": {
        "run": "bookkeeping",
        "round": "bookkeeping",
        "client_id": "identity",
        "digest": "digest",
    },
    "UploadStatus": {"offset": "bookkeeping", "accepted": "bookkeeping"},
    "FetchContributionRequest": {
        "run": "bookkeeping",
        "round": "bookkeeping",
        "client_id": "identity",
        "contributor": "identity",
    },
    "FetchSumRequest": {"run": "bookkeeping", "round": "bookkeeping", "client_id": "identity"},
    "FetchPublishedRequest": {
        "run": "bookkeeping",
        "client_id": "identity",
        "after_round": "bookkeeping",
    },
    "FetchSnapshotRequest": {
        "run": "bookkeeping",
        "client_id": "identity",
        "after_round": "bookkeeping",
        "refused": "digest",
    },
    "Published": {
        "round": "bookkeeping",
        "epoch": "bookkeeping",
        "kind": "bookkeeping",
    },
    "Snapshot": {"round": "bookkeeping", "epoch": "bookkeeping"},
    # Rounds under masks.
    "MaskTask": {"round": "bookkeeping", "step": "bookkeeping", "epoch": "bookkeeping"},
    "MaskMessage": {
        "federation": "public",
        "run": "bookkeeping",
        "round": "bookkeeping",
        "epoch": "bookkeeping",
        "client_id": "identity",
        "step": "bookkeeping",
        "body": "masks",
        "signature": "signature",
    },
    "MaskReceipt": {"round": "bookkeeping", "duplicate": "bookkeeping"},
    "FetchMasksRequest": {
        "run": "bookkeeping",
        "round": "bookkeeping",
        "client_id": "identity",
        "step": "bookkeeping",
    },
    "MaskKeys": {
        "base_state": "digest",
        "mask_key": "public key",
        "share_key": "public key",
        "signature": "signature",
    },
    "MaskListedKeys": {
        "client_id": "identity",
        "mask_key": "public key",
        "share_key": "public key",
        "signature": "signature",
    },
    "MaskShares": {"holders": "identity", "sealed": "mask share", "commitment": "digest"},
    "MaskInbox": {"shared": "identity", "owners": "identity", "sealed": "mask share"},
    "MaskSignatures": {"positions": "identity", "signatures": "signature"},
    "MaskAnswer": {
        "self_owners": "identity",
        "self_shares": "mask secret",
        "key_owners": "identity",
        "key_shares": "mask secret",
    },
    # The operators' calls.
    "RoundStatus": {
        "round": "bookkeeping",
        "kind": "bookkeeping",
        "phase": "bookkeeping",
        "expected": "bookkeeping",
        "arrived": "bookkeeping",
        "bytes_received": "bookkeeping",
        "seconds_left": "bookkeeping",
    },
    "Status": {
        "federation": "public",
        "run": "bookkeeping",
        "protection": "public",
        "published_round": "bookkeeping",
        "rounds_published": "bookkeeping",
        "rounds_planned": "public",
        "rounds_abandoned": "bookkeeping",
        "clients_seen": "bookkeeping",
        "clients_in_roster": "public",
        "finished": "bookkeeping",
        "finish_reason": "words",
        "last_event": "bookkeeping",
        "epoch": "bookkeeping",
        "next_epoch": "bookkeeping",
        "waits_for": "words",
        "authority_heard": "bookkeeping",
        "awaited": "identity",
        "stalled": "bookkeeping",
        "epsilon": "bookkeeping",
    },
    "Quality": {
        "round": "bookkeeping",
        "at": "public",
        "loss": "metrics",
        "validation_hr": "metrics",
        "validation_ndcg": "metrics",
        "test_hr": "metrics",
        "test_ndcg": "metrics",
    },
    "Applicants": {"application": "public"},
    # The token opens the page once, for an operator's browser.
    "PageLink": {
        "scheme": "bookkeeping",
        "host": "bookkeeping",
        "port": "bookkeeping",
        "token": "nonce",
        "good_seconds": "bookkeeping",
    },
    "InstallEpochReply": {"epoch": "bookkeeping", "began": "bookkeeping"},
    "WatchEventsRequest": {"after_event": "bookkeeping", "follow": "bookkeeping"},
    "Event": {
        "sequence": "bookkeeping",
        "unix_seconds": "bookkeeping",
        "kind": "bookkeeping",
        "round": "bookkeeping",
        "fields_json": "metrics",
    },
    "StopRunRequest": {"now": "bookkeeping"},
    "StopRunReply": {"message": "words"},
}

FIELDS: dict[str, str] = {
    f"{message}.{field}": kind
    for message, fields in _MESSAGES.items()
    for field, kind in fields.items()
}
"""The kind of every scalar field of every message, as `Message.field`."""

BLOBS: dict[str, str] = {
    "GetCatalogue": "public",
    "SubmitUpdate": "update",
    "FetchContribution": "update",
    "FetchSum": "sum",
    "SubmitReveal": "published sum",
    "FetchPublished": "published sum",
    "FetchSnapshot": "snapshot",
    "SubmitSnapshot": "snapshot",
    "InstallEpoch": "epoch bundle",
    "FetchMasks": "masks",
}
"""What the chunks of a method's stream make up together."""

EVENT_KEYS = frozenset(
    {
        "after_round",
        "asked",
        "bytes",
        "bytes_published",
        "bytes_received",
        "charged",
        "clients",
        "counted",
        "epoch",
        "failed",
        "kind",
        "left_out",
        "members",
        "metrics",
        "reason",
        "rows",
        "seconds",
        "stalled_seconds",
        "step",
    }
)
"""Keys of the JSON objects that operators see."""


def undeclared_event_keys(text: str) -> list[str]:
    """Return what a JSON object that operators see has besides `EVENT_KEYS`."""
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        return ["something that is no JSON object"]
    return sorted(set(content) - EVENT_KEYS)


_TABLES: dict[str, dict[str, str]] = {
    "meta": {"name": "bookkeeping", "value": "bookkeeping"},
    "rounds": {
        "round": "bookkeeping",
        "kind": "bookkeeping",
        "base_round": "bookkeeping",
        "epoch": "bookkeeping",
        "phase": "bookkeeping",
        "opened_at": "bookkeeping",
        "deadline_at": "bookkeeping",
        "reason": "words",
        "n_rows": "bookkeeping",
        "rows_digest": "keyed digest",
        "sum_length": "bookkeeping",
        "sum_digest": "digest",
        "blob_name": "bookkeeping",
        "blob_length": "bookkeeping",
        "blob_digest": "digest",
        "known_epoch": "bookkeeping",
        "known_tag": "keyed digest",
        "reports_until": "bookkeeping",
    },
    "asked": {"round": "bookkeeping", "client_id": "identity"},
    "contributions": _HEADER,
    "latest": _HEADER,
    "statements": _STATEMENT,
    "paused": {"epoch": "bookkeeping", "cell": "bookkeeping", "round": "bookkeeping"},
    "reports": _REPORT,
    "snapshots": {
        "round": "bookkeeping",
        "epoch": "bookkeeping",
        "length": "bookkeeping",
        "digest": "digest",
    },
    "attestations": _REPORT,
    "epochs": {"epoch": "bookkeeping", "length": "bookkeeping", "digest": "digest"},
    "applicants": {
        "invitation": "digest",
        "client_id": "identity",
        "application": "public",
    },
    "ledger": {"round": "bookkeeping", "at": "bookkeeping"},
    "mask_messages": {
        "round": "bookkeeping",
        "client_id": "identity",
        "step": "bookkeeping",
        "body": "masks",
    },
    "journal": {
        "sequence": "bookkeeping",
        "unix_seconds": "bookkeeping",
        "kind": "bookkeeping",
        "round": "bookkeeping",
        "fields_json": "metrics",
    },
    "sqlite_sequence": {"name": "bookkeeping", "seq": "bookkeeping"},
}

COLUMNS: dict[str, str] = {
    f"{table}.{column}": kind
    for table, columns in _TABLES.items()
    for column, kind in columns.items()
}
"""The kind of every column of the coordinator's database, as `table.column`."""

FILES: tuple[tuple[str, str], ...] = (
    (r"coordinator\.sqlite(-wal|-shm)?", "bookkeeping"),
    (r"highwater|lock", "bookkeeping"),
    (r"updates/\d{8}-[0-9a-f]{64}", "update"),
    (r"partial/\d{8}-[0-9a-f]{64}-[0-9a-f]+", "unfinished update"),
    (r"partial/tmp-[0-9a-f]{16}", "published sum"),
    (r"blobs/\d{8}-sum", "sum"),
    (r"blobs/\d{8}-[0-9a-f]{64}", "published sum"),
    (r"epochs/\d{8}-[0-9a-f]{64}", "epoch bundle"),
    (r"snapshots/\d{8}-[0-9a-f]{64}", "snapshot"),
)
"""What each file of the state folder is, by its path there."""


def file_kind(path: str) -> str | None:
    """Return the kind of a file of the state folder; None where there may be no such file."""
    return next((kind for form, kind in FILES if re.fullmatch(form, path)), None)
