"""The five steps of a round under masks."""

from __future__ import annotations

from fedrec.protection.round_protocol import COLLECTING, Step, Steps

KEYS, SHARES, VECTOR, SIGNATURE, ANSWER = "keys", "shares", "vector", "signature", "answer"

STEPS = Steps(
    (
        Step(name=KEYS, phase=COLLECTING),
        Step(name=SHARES, phase="sharing", refusal="mask_keys_refused"),
        Step(name=VECTOR, phase="masking", brings_vector=True, refusal="mask_inbox_refused"),
        Step(name=SIGNATURE, phase="signing", refusal="survivors_refused"),
        # With enough shares the coordinator can read the sum, also where the round is given up.
        Step(name=ANSWER, phase="unmasking", opens_sum=True, refusal="shares_refused"),
    )
)
