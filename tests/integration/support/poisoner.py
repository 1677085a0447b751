"""A member that uploads what is no update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from blake3 import blake3
from integration.support.links import Forgetful

from fedrec.errors import MalformedUpdate
from fedrec.identity.identity import Identity
from fedrec.wire.link import Link
from fedrec.wire.messages import UploadHeader

POISONED_ROUND = 3
Poison = Callable[[bytes], bytes]


class Poisoner(Forgetful):
    """Replaces its update of one round by each poison in turn, and signs what it made.

    All but the last have to be refused; whatever becomes of that one is the client's.
    """

    def __init__(self, link: Link, identity: Identity, poisons: Sequence[Poison]) -> None:
        super().__init__(link)
        self._identity = identity
        self._poisons = poisons

    def submit_update(self, header: UploadHeader, payload: bytes) -> bool:
        if header.round != POISONED_ROUND or not self._poisons:
            return self.link.submit_update(header, payload)
        *others, last = self._poisons
        self._poisons = ()
        for poison in others:
            with pytest.raises(MalformedUpdate):
                self._submit(header, poison(payload))
        return self._submit(header, last(payload))

    def _submit(self, header: UploadHeader, payload: bytes) -> bool:
        changed = replace(
            header, digest=blake3(payload).digest(), length=len(payload), signature=b""
        )
        signature = self._identity.sign(changed.statement())
        return self.link.submit_update(replace(changed, signature=signature), payload)
