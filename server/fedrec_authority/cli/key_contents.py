"""Describe key files without revealing secrets."""

from __future__ import annotations

import json
from pathlib import Path

from fedrec.cli.terminal import count_of
from fedrec.errors import KeysError
from fedrec.identity.authority import AUTHORITY_FILE, Authority
from fedrec.identity.epoch import KeyEpoch
from fedrec.identity.epoch_secrets import REVEALER_FOLDER
from fedrec.identity.identity import KEY_FILE, Identity
from fedrec.identity.public import PublicIdentity, fingerprint, read_authority_key
from fedrec.identity.roster import Roster
from fedrec_authority.members.register import MemberRegister

LARGEST_BYTES = 256 * 1024 * 1024
Content = dict[str, object]


def describe_keys(path: Path) -> list[Content]:
    """Return a description of a key file, or of every key file in a folder.

    Raises:
        KeysError: if there is no key file, or a key file is damaged.
    """
    if not path.is_dir():
        return [_describe(path)]
    found = [_describe(file) for file in sorted(path.rglob("*")) if _is_key_file(file)]
    if not found:
        raise KeysError(
            f"There are no key files in {path}.",
            remedy="Check the path. `fedrec provision` creates a federation's keys.",
        )
    return found


def describe_roster(roster: Roster) -> Content:
    """Return the members and terms of an epoch."""
    return {
        "federation": roster.federation,
        "epoch": roster.epoch,
        "authority": fingerprint(roster.authority_key),
        "protection": roster.protection,
        "protection_fingerprint": roster.protection_fingerprint,
        "minimum_summands": roster.minimum_summands,
        "key_holder": roster.key_holder,
        **({} if roster.revealer is None else {"revealer": roster.revealer.client_id}),
        "members": [
            {"client_id": member.client_id, "label": member.label} for member in roster.members
        ],
    }


def _is_key_file(path: Path) -> bool:
    if path.name in (KEY_FILE, AUTHORITY_FILE):
        return True
    return path.suffix == ".json" and path.is_file() and _kind(path).startswith("fedrec ")


def _describe(path: Path) -> Content:
    content: Content = {"path": str(path)}
    kind = _kind(path)
    if kind == "fedrec key epoch":
        epoch = KeyEpoch.load(path)
        content |= {"what": "the public bundle of a key epoch, for the coordinator"}
        content |= describe_roster(epoch.roster)
        holders = count_of(len(epoch.wrapped_keys), "member")
        content["wrapped_secrets"] = f"readable only by {holders}"
    elif kind == "fedrec roster":
        content |= {"what": "a signed roster"} | describe_roster(
            Roster.from_json(path.read_bytes())
        )
    elif kind == "fedrec public identity":
        content |= _client(PublicIdentity.load(path), "a client's public keys")
    elif kind == "fedrec authority key":
        key = read_authority_key(path)
        content |= {"what": "the authority's public key, to pin", "authority": fingerprint(key)}
    elif kind == "fedrec identity":
        public = Identity.load(path.parent).public
        whose = "the revealer" if path.parent.name == REVEALER_FOLDER else "a client"
        content |= _client(public, f"{whose}'s private keys, to be kept secret")
    elif kind == "fedrec authority":
        key = Authority.load(path.parent).public_key
        content["what"] = "the authority's private key, to be kept secret"
        content["authority"] = fingerprint(key)
    elif kind == "fedrec authority membership":
        membership = MemberRegister.from_json(path.read_bytes(), str(path))
        content["what"] = "the authority's record of members"
        content["last_epoch"] = membership.last_epoch
        content["members"] = len(membership.present)
        content["former_members"] = len(membership.members) - len(membership.present)
    elif kind == "fedrec applicants":
        content["what"] = "applicants whose id people have yet to compare"
    elif kind == "fedrec invitations":
        content["what"] = "the authority's invitations, and which applicant used each"
    else:
        raise KeysError(
            f"{path} is not a key file of fedrec.",
            remedy="Key files are identity.key, *.pub.json, epoch.json and authority.key.",
        )
    return content


def _client(public: PublicIdentity, what: str) -> Content:
    return {"what": what, "client_id": public.client_id, "label": public.label}


def _kind(path: Path) -> str:
    """Return the kind that a document names, or an empty string."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return ""
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise KeysError(f"{path} does not exist.", remedy="Check the path.") from None
    except (OSError, ValueError, RecursionError):
        return ""
    kind = content.get("kind") if isinstance(content, dict) else None
    return kind if isinstance(kind, str) else ""
