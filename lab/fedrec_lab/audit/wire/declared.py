"""Everything that may travel to a coordinator or be stored there, and the promise about it.

There is one table for messages, one for database tables and one for files. Anything that is not in
them is a broken promise, whatever its content. So a new field must be declared before it may
travel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """The kind of a value that travels.

    Attributes:
        promise: the threat model's promise about it.
        one_length: whether all of its values have the same length from every sender.
        sealed: when its bytes must look random to the coordinator: always, never, if the protection
            hides updates, or only if it hides sums, too.
        of_epoch: whether it differs between key epochs, so that lengths are compared within one.
    """

    promise: str
    one_length: bool = False
    sealed: str = "never"
    of_epoch: bool = False


KINDS: dict[str, Kind] = {
    "identity": Kind(
        promise="participants and times are visible: fingerprints of keys, no user ids"
    ),
    "bookkeeping": Kind(promise="rounds, sizes, phases and times are visible"),
    "public": Kind(promise="plan, catalogue and roster are public and have no user data"),
    "digest": Kind(promise="names bytes that also travel", one_length=True),
    "keyed digest": Kind(promise="reveals nothing without the group key", one_length=True),
    "signature": Kind(promise="identifies the sender, nothing else", one_length=True),
    "nonce": Kind(promise="random bytes that are used once", one_length=True),
    "epoch bundle": Kind(
        promise="a signed roster, a context without a key, and keys that only members can unwrap"
    ),
    "context": Kind(promise="the protection's context has no key", one_length=True, of_epoch=True),
    "wrapped key": Kind(
        promise="only a member's own key opens it",
        one_length=True,
        sealed="always",
        of_epoch=True,
    ),
    "public key": Kind(promise="keys of one round under masks. They open nothing", one_length=True),
    "mask share": Kind(promise="shares that only other clients can open", sealed="always"),
    "mask secret": Kind(
        promise="a client's shares of masks. Enough of them unmask the sum, but no single update"
    ),
    "masks": Kind(
        promise="participants of a round under masks, and shares that only others can open"
    ),
    "metrics": Kind(promise="sums over all clients of a round, once it is published"),
    "update": Kind(
        promise="one client's update: readable only under none",
        one_length=True,
        sealed="updates",
    ),
    "unfinished update": Kind(
        promise="the received part of an update, until its round is over", sealed="updates"
    ),
    "sum": Kind(
        promise="a round's sum: a ciphertext if it is opened elsewhere",
        one_length=True,
        sealed="sums",
    ),
    "published sum": Kind(
        promise="a ciphertext, or sealed for the members, if it is opened elsewhere",
        sealed="sums",
    ),
    "own model": Kind(
        promise="what the coordinator computed for one client: only under none, and accepted"
    ),
    "snapshot": Kind(promise="sealed for the members if sums are opened elsewhere", sealed="sums"),
    "words": Kind(promise="the coordinator's own text for clients and operators"),
}

Kinds = Mapping[str, str]
"""By kind: the names of its fields or columns, separated by spaces."""

_HEADER: Kinds = {
    "public": "protocol_version federation catalogue_fingerprint plan_fingerprint",
    "bookkeeping": "run round epoch length kind base_round n_rows",
    "identity": "client_id",
    "digest": "digest key_list",
    "signature": "signature",
    "keyed digest": "base_state rows_digest",
    "nonce": "nonce",
}
_STATEMENT: Kinds = {
    "public": "federation",
    "bookkeeping": "run round epoch n_rows paused sequence kind trained charged",
    "identity": "client_id",
    "digest": "manifest_digest published_digest previous",
    "keyed digest": "state_tag rows_digest",
    "metrics": "metrics",
    "words": "refused",
    "signature": "signature",
}
_REPORT: Kinds = {
    "public": "federation",
    "bookkeeping": "run round epoch n_rows",
    "identity": "client_id",
    "keyed digest": "state_tag rows_digest",
    "metrics": "metrics",
    "signature": "signature",
}
_MESSAGES: Mapping[str, Kinds] = {
    "UploadHeader": _HEADER,
    "RevealStatement": _STATEMENT,
    "Report": _REPORT,
    "BlobHeader": {"bookkeeping": "length", "digest": "digest"},
    # The content of a chunk depends on the call. See BLOBS.
    "Chunk": {"bookkeeping": "offset"},
    "UploadReceipt": {"bookkeeping": "round duplicate"},
    "RoundReceipt": {"bookkeeping": "round"},
    "ApplyRequest": {"public": "application"},
    "Application": {"bookkeeping": "epoch listed", "public": "certificate"},
    "GetFederationRequest": {"public": "protocol_version release", "identity": "client_id"},
    "Federation": {
        "public": "protocol_version federation plan_json catalogue_fingerprint n_items roster_json",
        "bookkeeping": "run epoch published_round",
        "context": "server_context",
        "wrapped key": "wrapped_secrets",
    },
    "GetCatalogueRequest": {"identity": "client_id"},
    "NextTaskRequest": {
        "identity": "client_id",
        "bookkeeping": "run version wait_seconds acknowledged_round",
        "digest": "acknowledged_digest",
    },
    "Wait": {"words": "reason", "bookkeeping": "about"},
    "Train": {"bookkeeping": "round kind base_round seconds_left epoch"},
    "Reveal": {"bookkeeping": "round kind base_round epoch"},
    "MakeSnapshot": {"bookkeeping": "round"},
    "Finished": {"words": "reason", "bookkeeping": "failed"},
    "Task": {"bookkeeping": "published_round epoch"},
    "Latest": {},
    "UploadStatusRequest": {
        "bookkeeping": "run round",
        "identity": "client_id",
        "digest": "digest",
    },
    "UploadStatus": {"bookkeeping": "offset accepted"},
    "FetchContributionRequest": {"bookkeeping": "run round", "identity": "client_id contributor"},
    "FetchSumRequest": {"bookkeeping": "run round", "identity": "client_id"},
    "FetchPublishedRequest": {"bookkeeping": "run after_round", "identity": "client_id"},
    "FetchOwnModelRequest": {"bookkeeping": "run round parameter", "identity": "client_id"},
    "FetchSnapshotRequest": {
        "bookkeeping": "run after_round",
        "identity": "client_id",
        "digest": "refused",
    },
    "Published": {"bookkeeping": "round epoch kind"},
    "Snapshot": {"bookkeeping": "round epoch"},
    # Rounds under masks.
    "MaskTask": {"bookkeeping": "round step epoch"},
    "MaskMessage": {
        "public": "federation",
        "bookkeeping": "run round epoch step",
        "identity": "client_id",
        "masks": "body",
        "signature": "signature",
    },
    "MaskReceipt": {"bookkeeping": "round duplicate"},
    "Goodbye": {"identity": "client_id", "bookkeeping": "code"},
    "FetchMasksRequest": {"bookkeeping": "run round step", "identity": "client_id"},
    "MaskKeys": {
        "digest": "base_state",
        "public key": "mask_key share_key",
        "signature": "signature",
    },
    "MaskListedKeys": {
        "identity": "client_id",
        "public key": "mask_key share_key",
        "signature": "signature",
    },
    "MaskShares": {"identity": "holders", "mask share": "sealed", "digest": "commitment"},
    "MaskInbox": {"identity": "shared owners", "mask share": "sealed"},
    "MaskSignatures": {"identity": "positions", "signature": "signatures"},
    "MaskAnswer": {"identity": "self_owners key_owners", "mask secret": "self_shares key_shares"},
    # The operators' calls.
    "RoundStatus": {"bookkeeping": "round kind phase expected arrived bytes_received seconds_left"},
    "Status": {
        "public": "federation protection rounds_planned clients_in_roster protocol",
        "bookkeeping": "run published_round rounds_published rounds_abandoned "
        "clients_seen clients_here finished last_event epoch next_epoch authority_heard stalled "
        "epsilon now stop_asked",
        "words": "finish_reason waits_for unplaced disk_full",
        "metrics": "caution",
        "identity": "awaited",
    },
    "Member": {
        "identity": "name",
        "public": "version",
        "bookkeeping": "state heard model last_counted bytes_counted",
        "words": "why",
    },
    "Quality": {
        "bookkeeping": "round",
        "public": "at",
        "metrics": "loss validation_hr validation_ndcg test_hr test_ndcg",
    },
    "Applicants": {"public": "application"},
    # The token opens the page once, for an operator's browser.
    "PageLink": {"bookkeeping": "scheme host port good_seconds", "nonce": "token"},
    "InstallEpochReply": {"bookkeeping": "epoch began"},
    "WatchEventsRequest": {"bookkeeping": "after_event follow"},
    "Event": {"bookkeeping": "sequence unix_seconds kind round", "metrics": "fields_json"},
    "StopRunRequest": {"bookkeeping": "now"},
    "StopRunReply": {"words": "message"},
}


def _of_each(declared: Mapping[str, Kinds]) -> dict[str, str]:
    """Return the kind of every name, given as `owner.name`."""
    return {
        f"{owner}.{name}": kind
        for owner, kinds in declared.items()
        for kind, names in kinds.items()
        for name in names.split()
    }


FIELDS: dict[str, str] = _of_each(_MESSAGES)
"""The kind of every scalar field of every message, as `Message.field`."""

BLOBS: dict[str, str] = {
    "GetCatalogue": "public",
    "SubmitUpdate": "update",
    "FetchContribution": "update",
    "FetchSum": "sum",
    "SubmitReveal": "published sum",
    "FetchPublished": "published sum",
    "FetchSnapshot": "snapshot",
    "FetchOwnModel": "own model",
    "SubmitSnapshot": "snapshot",
    "InstallEpoch": "epoch bundle",
    "FetchMasks": "masks",
}
"""The content of a method's stream of chunks, taken together."""

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
    """Return the keys of a JSON object for operators that are not in `EVENT_KEYS`."""
    try:
        content = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        return ["a value that is not a JSON object"]
    return sorted(set(content) - EVENT_KEYS)


_TABLES: Mapping[str, Kinds] = {
    "meta": {"bookkeeping": "name value"},
    "rounds": {
        "bookkeeping": "round kind base_round epoch phase opened_at deadline_at "
        "n_rows sum_length blob_name blob_length known_epoch reports_until",
        "words": "reason",
        "keyed digest": "rows_digest known_tag",
        "digest": "sum_digest blob_digest",
    },
    "asked": {"bookkeeping": "round", "identity": "client_id"},
    "contributions": _HEADER,
    "latest": _HEADER,
    "statements": _STATEMENT,
    "paused": {"bookkeeping": "epoch cell round"},
    "reports": _REPORT,
    "snapshots": {"bookkeeping": "round epoch length", "digest": "digest"},
    "attestations": _REPORT,
    "epochs": {"bookkeeping": "epoch length", "digest": "digest"},
    "applicants": {"digest": "invitation", "identity": "client_id", "public": "application"},
    "ledger": {"bookkeeping": "round at"},
    "mask_messages": {"bookkeeping": "round step", "identity": "client_id", "masks": "body"},
    "journal": {"bookkeeping": "sequence unix_seconds kind round", "metrics": "fields_json"},
    "sqlite_sequence": {"bookkeeping": "name seq"},
}

COLUMNS: dict[str, str] = _of_each(_TABLES) | {
    f"{table}.checksum": "bookkeeping" for table in _TABLES if table != "sqlite_sequence"
}
"""The kind of every column of the coordinator's database, as `table.column`."""

FILES: tuple[tuple[str, str], ...] = (
    (r"coordinator\.sqlite(-wal|-shm)?", "bookkeeping"),
    (r"before-upgrade\.bak", "bookkeeping"),
    (r"highwater|lock", "bookkeeping"),
    (r"updates/\d{8}-[0-9a-f]{64}", "update"),
    (r"partial/\d{8}-[0-9a-f]{64}-[0-9a-f]+", "unfinished update"),
    (r"partial/tmp-[0-9a-f]{16}", "published sum"),
    (r"blobs/\d{8}-sum", "sum"),
    (r"blobs/\d{8}-[0-9a-f]{64}", "published sum"),
    (r"models/\d{8}-[0-9a-f]{64}-\d+", "own model"),
    (r"epochs/\d{8}-[0-9a-f]{64}", "epoch bundle"),
    (r"snapshots/\d{8}-[0-9a-f]{64}", "snapshot"),
)
"""The kind of each file of the state folder, by its path there."""


def file_kind(path: str) -> str | None:
    """Return the kind of a file of the state folder, or None if no such file may exist."""
    return next((kind for form, kind in FILES if re.fullmatch(form, path)), None)
