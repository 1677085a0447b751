"""The selection of users: secret, fair, repeatable."""

import hmac

import numpy as np

from fedrec.ids import RoundId, UserId, canonical
from fedrec_client.round.participation import select_users, selection_secret
from fedrec_client.state.private_store import PrivateStore

USERS = [UserId(f"user {n}") for n in range(4000)]


def test_one_user_by_hand():
    secret = b"s" * 32
    message = canonical("fedrec coin v1", "run", 3) + canonical("user 0")
    draw = int.from_bytes(hmac.digest(secret, message, "sha256")[:8], "big") / 2**64
    for fraction in (draw - 1e-6, draw + 1e-6):
        (chosen,) = select_users(secret, "run", RoundId(3), USERS[:1], fraction)
        assert chosen == (draw < fraction)


def test_the_secret_outlives_the_process(tmp_path):
    with PrivateStore(tmp_path) as store:
        secret = selection_secret(store)
        assert selection_secret(store) == secret and len(secret) == 32
    with PrivateStore(tmp_path) as store:
        assert selection_secret(store) == secret
    with PrivateStore(tmp_path / "other") as other:
        assert selection_secret(other) != secret


def test_it_is_fair_and_depends_on_everything():
    drawn = select_users(b"a" * 32, "run", RoundId(1), USERS, 0.3)
    assert abs(drawn.mean() - 0.3) < 0.03
    assert (drawn == select_users(b"a" * 32, "run", RoundId(1), USERS, 0.3)).all()
    others = [
        select_users(b"b" * 32, "run", RoundId(1), USERS, 0.3),
        select_users(b"a" * 32, "other", RoundId(1), USERS, 0.3),
        select_users(b"a" * 32, "run", RoundId(2), USERS, 0.3),
    ]
    for other in others:
        assert abs((drawn & other).mean() - 0.09) < 0.02


def test_everybody_takes_part_at_one():
    assert select_users(b"", "run", RoundId(1), USERS, 1.0).all()
    assert select_users(b"a" * 32, "run", RoundId(1), [], 0.5).dtype == np.bool_
