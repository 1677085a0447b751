"""The revealing phase: two members of the committee must say the same before a round is published.

Where the key authority alone opens sums it is the whole committee, and its word is enough.

Committee members who contributed are asked first. Silent ones are replaced by the third, who also
decides a contradiction; nobody outside the committee is asked, however silent it is. A sealed
aggregate counts only when somebody else signed the same content.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations

from fedrec.errors import (
    BadSignature,
    ConflictingUpload,
    ProtocolError,
    RefusedError,
    RoundClosed,
)
from fedrec.identity.metrics_lock import unlock
from fedrec.ids import ClientId
from fedrec_server.rounds.changes import Change, HolderAsked, StatementKept
from fedrec_server.rounds.events import Spoke
from fedrec_server.rounds.state import Holder, Role, Round, Rules, Word

__all__ = ["Agreement", "Verdict", "begin", "hear", "proceed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What enough members of the committee said alike.

    Attributes:
        words: the agreeing ones, a sealed word first where there is one.
        metrics: the metrics that their shares opened, little-endian int64.
    """

    words: tuple[Word, ...]
    metrics: bytes


Verdict = Agreement | str | None
"""What to publish, the reason to abandon, or None: go on."""


def begin(rules: Rules, round_: Round, now: float) -> tuple[Round, tuple[Change, ...]]:
    """Ask the first revealer and, where members are key holders, the first verifier."""
    asked: list[Change] = []
    roles: tuple[Role, ...] = ("reveal", "verify")
    for role in roles[: rules.quorum]:
        round_ = _ask(round_, role, None, now, asked) or round_
    return round_, tuple(asked)


def hear(round_: Round, event: Spoke) -> tuple[Round, tuple[Change, ...]]:
    """Keep a statement, replacing an earlier unsealed one of the same content.

    Raises:
        RoundClosed: when the round is not being revealed.
        RefusedError: when the client was not asked.
        ProtocolError: when a revealer sends nothing sealed, or nobody a share.
        ConflictingUpload: when it contradicts its own earlier word.
    """
    client_id = event.statement.client_id
    role = round_.role_of(client_id)
    if round_.phase != "revealing" or event.statement.round != round_.number:
        raise RoundClosed(f"Round {event.statement.round} is not being revealed.")
    if role is None:
        raise RefusedError(f"This client was not asked to reveal round {round_.number}.")
    if role == "reveal" and event.blob is None:
        raise ProtocolError("A revealer must send the sealed aggregate with its statement.")
    if event.blob is not None and event.blob.digest != event.statement.published_digest:
        raise ProtocolError("The sealed aggregate is not the one that its key holder signed.")
    if not event.statement.share:
        raise ProtocolError("A key holder must send its share of the metrics' key.")
    before = round_.word_of(client_id)
    if before is not None:
        if before.statement.content() != event.statement.content():
            raise ConflictingUpload("This key holder signed something else for this round before.")
        if before.blob is not None or event.blob is None:
            return round_, ()
    blob = event.blob if role == "reveal" else None
    word = Word(statement=event.statement, blob=blob)
    others = tuple(w for w in round_.words if w.statement.client_id != client_id)
    changes = (StatementKept(round=round_.number, word=word, at=event.now),)
    return replace(round_, words=(*others, word)), changes


def proceed(rules: Rules, round_: Round, now: float) -> tuple[Round, tuple[Change, ...], Verdict]:
    """Publish what enough agree on, or ask whoever is missing."""
    agreed = _agreement(rules, round_)
    if agreed is not None and agreed.words[0].blob is not None:
        return round_, (), agreed
    if agreed is None and len(round_.words) >= len(round_.committee):
        alone = "the key authority's share does not open the metrics that it stated"
        return round_, (), alone if rules.revealer else "the key holders contradict each other"
    asked: list[Change] = []
    for role in _missing(rules, round_, agreed, now):
        extended = _ask(round_, role, agreed, now, asked)
        if extended is not None:
            round_ = extended
        elif not _pending(rules, round_, now):
            return round_, (), _silence(rules, round_)
    return round_, tuple(asked), None


def _patience(rules: Rules, round_: Round) -> float:
    return rules.reveal_seconds(round_.kind, len(round_.accepted))


def _silence(rules: Rules, round_: Round) -> str:
    if rules.revealer is None:
        return "no key holder is left to reveal the sum"
    seconds = _patience(rules, round_)
    return f"the key authority did not reveal the sum within {seconds:g} seconds"


def _agreement(rules: Rules, round_: Round) -> Agreement | None:
    """Return words of equal content whose shares open the metrics, sealed ones first."""
    ordered = sorted(round_.words, key=lambda word: word.blob is None)
    for words in combinations(ordered, rules.quorum):
        statements = [word.statement for word in words]
        if len({statement.content() for statement in statements}) > 1:
            continue
        shares = {round_.place_of(each.client_id): each.share for each in statements}
        try:
            metrics = unlock(statements[0].locked_metrics, shares)
            return Agreement(words=words, metrics=metrics)
        except BadSignature:
            continue
    return None


def _pending(rules: Rules, round_: Round, now: float) -> list[Holder]:
    """Return those who were asked, did not answer and still have time."""
    patience = _patience(rules, round_)
    latest = {holder.client_id: holder for holder in round_.holders}
    pending = []
    for holder in latest.values():
        word = round_.word_of(holder.client_id)
        answered = word is not None and (holder.role == "verify" or word.blob is not None)
        if not answered and now < holder.asked_at + patience:
            pending.append(holder)
    return pending


def _missing(rules: Rules, round_: Round, agreed: Agreement | None, now: float) -> tuple[Role, ...]:
    """Return the roles for which somebody else has to be asked now."""
    pending = _pending(rules, round_, now)
    sealed = any(word.blob is not None for word in round_.words)
    revealers = sum(holder.role == "reveal" for holder in pending)
    if agreed is not None:
        return () if revealers else ("reveal",)
    wanted: list[Role] = []
    if not sealed and not revealers:
        wanted.append("reveal")
    # Equal voices are needed and those present all differ, so that one of them counts.
    if min(1, len(round_.words)) + len(pending) + len(wanted) < rules.quorum:
        wanted.append("verify")
    return tuple(wanted)


def _ask(
    round_: Round, role: Role, agreed: Agreement | None, now: float, asked: list[Change]
) -> Round | None:
    """Ask the next of the committee: a contributor, another one, then a verifier who agreed."""
    used = {holder.client_id for holder in round_.holders}
    revealed = {h.client_id for h in round_.holders if h.role == "reveal"}
    waiting = [client for client in round_.committee if client not in used]
    # Contributors were here a moment ago.
    waiting.sort(key=lambda client: client not in round_.accepted)
    if role == "reveal" and agreed is not None:
        again: list[ClientId] = [word.statement.client_id for word in agreed.words]
        waiting += [client for client in again if client not in revealed]
    if not waiting:
        return None
    holder = Holder(client_id=waiting[0], role=role, asked_at=now)
    asked.append(HolderAsked(round=round_.number, holder=holder))
    return replace(round_, holders=(*round_.holders, holder))
