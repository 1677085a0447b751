"""The revealing phase: two key holders must say the same before a round is published.

The revealer and the verifier are contributors of the round. Silent ones are replaced, a
contradiction is decided by a third, and a sealed aggregate counts only when somebody else
signed the same content.
"""

from __future__ import annotations

from dataclasses import replace

from fedrec.errors import ConflictingUpload, ProtocolError, RefusedError, RoundClosed
from fedrec.ids import ClientId
from fedrec_server.rounds.changes import Change, HolderAsked, StatementKept
from fedrec_server.rounds.events import Spoke
from fedrec_server.rounds.selection import choose_holder
from fedrec_server.rounds.state import Holder, Role, Round, Rules, Word

__all__ = ["Verdict", "begin", "hear", "proceed"]

VOICES = 3
"""After so many statements without an agreeing pair the round is abandoned."""

Verdict = tuple[Word, Word] | str | None
"""The agreeing pair (the revealer's first), the reason to abandon, or None: go on."""


def begin(rules: Rules, round_: Round, now: float) -> tuple[Round, tuple[Change, ...]]:
    """Ask the first revealer and the first verifier."""
    asked: list[Change] = []
    for role in ("reveal", "verify"):
        round_ = _ask(rules, round_, role, frozenset(), now, asked) or round_
    return round_, tuple(asked)


def hear(round_: Round, event: Spoke) -> tuple[Round, tuple[Change, ...]]:
    """Keep a statement, replacing an earlier unsealed one of the same content.

    Raises:
        RoundClosed: when the round is not being revealed.
        RefusedError: when the client was not asked.
        ProtocolError: when a revealer sends nothing sealed.
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


def proceed(
    rules: Rules, round_: Round, live: frozenset[ClientId], now: float
) -> tuple[Round, tuple[Change, ...], Verdict]:
    """Publish what two agree on, or ask whoever is missing."""
    pair = _agreeing(round_)
    if pair is not None and pair[0].blob is not None:
        return round_, (), pair
    if pair is None and len(round_.words) >= VOICES:
        return round_, (), "the key holders contradict each other"
    asked: list[Change] = []
    for role in _missing(rules, round_, pair, now):
        extended = _ask(rules, round_, role, live, now, asked)
        if extended is not None:
            round_ = extended
        elif not _pending(rules, round_, now):
            return round_, (), "no key holder is left to reveal the sum"
    return round_, tuple(asked), None


def _agreeing(round_: Round) -> tuple[Word, Word] | None:
    """Return two words of equal content, a sealed one first where there is one."""
    for word in sorted(round_.words, key=lambda word: word.blob is None):
        for other in round_.words:
            same = other.statement.content() == word.statement.content()
            if same and other.statement.client_id != word.statement.client_id:
                return word, other
    return None


def _pending(rules: Rules, round_: Round, now: float) -> list[Holder]:
    """Return those who were asked, did not answer and still have time."""
    patience = rules.rounds.reveal_timeout_seconds
    latest = {holder.client_id: holder for holder in round_.holders}
    pending = []
    for holder in latest.values():
        word = round_.word_of(holder.client_id)
        answered = word is not None and (holder.role == "verify" or word.blob is not None)
        if not answered and now < holder.asked_at + patience:
            pending.append(holder)
    return pending


def _missing(
    rules: Rules, round_: Round, pair: tuple[Word, Word] | None, now: float
) -> tuple[Role, ...]:
    """Return the roles for which somebody else has to be asked now."""
    pending = _pending(rules, round_, now)
    sealed = any(word.blob is not None for word in round_.words)
    revealers = sum(holder.role == "reveal" for holder in pending)
    if pair is not None:
        return () if revealers else ("reveal",)
    wanted: list[Role] = []
    if not sealed and not revealers:
        wanted.append("reveal")
    # Two equal voices are needed and those present all differ, so that one of them counts.
    if min(1, len(round_.words)) + len(pending) + len(wanted) < 2:
        wanted.append("verify")
    return tuple(wanted)


def _ask(
    rules: Rules,
    round_: Round,
    role: Role,
    live: frozenset[ClientId],
    now: float,
    asked: list[Change],
) -> Round | None:
    """Ask the next key holder: a contributor, then a live client, then who agreed before."""
    used = {holder.client_id for holder in round_.holders}
    revealed = {h.client_id for h in round_.holders if h.role == "reveal"}
    pair = _agreeing(round_)
    again = {w.statement.client_id for w in pair or ()} - revealed if role == "reveal" else set()
    for candidates in (set(round_.accepted) - used, live - used, again):
        client_id = choose_holder(
            candidates,
            run=rules.run,
            round_id=round_.number,
            manifest=round_.manifest_digest(rules.run),
            attempt=len(round_.holders),
        )
        if client_id is not None:
            holder = Holder(client_id=client_id, role=role, asked_at=now)
            asked.append(HolderAsked(round=round_.number, holder=holder))
            return replace(round_, holders=(*round_.holders, holder))
    return None
