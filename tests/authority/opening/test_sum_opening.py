"""What the key authority refuses to open, and that it does not touch its key while refusing."""

from dataclasses import replace

import pytest
from blake3 import blake3
from world.fake_authority import AuthorityWorld, refused
from world.fake_link import KeyWatch, Killed

from fedrec.identity.public import verify
from fedrec.plan.layout import METRICS_SLICE
from fedrec.wire.messages import Wait, manifest_digest
from fedrec_authority.folder.opened_sums import OpenedSums
from fedrec_authority.opening.revealer import STATE_FOLDER

pytestmark = pytest.mark.slow


@pytest.fixture
def world(tmp_path):
    return AuthorityWorld(tmp_path)


def test_fewer_than_three_even_if_the_roster_says_so(tmp_path, key):
    world = AuthorityWorld(tmp_path)
    world.epoch = world.make_epoch(minimum_summands=1)
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[:2])
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "needs at least 3")


def test_the_rosters_minimum_counts(tmp_path, key):
    world = AuthorityWorld(tmp_path)
    world.epoch = world.make_epoch(minimum_summands=4)
    round_ = world.honest_round()
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "needs at least 4")


@pytest.mark.parametrize("name", ["minimum_clients", "minimum_summands"])
def test_the_plans_minimum_counts(tmp_path, key, name):
    world = AuthorityWorld(tmp_path, rounds={name: 4})
    round_ = world.honest_round()
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "has 3 contributions, but needs at least 4")


def test_a_contributor_listed_twice(world, key):
    round_ = world.honest_round()
    headers = round_.headers
    world.run_revealer(lambda: world.reveal(round_, contributions=(*headers[:2], headers[0])))
    refused(world, key, "lists a client twice")


def test_one_client_with_two_different_updates(world, key):
    round_ = world.honest_round()
    first = world.puppets[0]
    other = world.sign(first, 1, world.half(first).protect(world.vector(9), b"other"))
    world.run_revealer(lambda: world.reveal(round_, contributions=(*round_.headers[:2], other)))
    refused(world, key, "lists a client twice")


def test_a_replayed_contribution(world, key):
    """Updates of another round, however well signed, do not enter this one's sum."""
    old = world.honest_round(1)
    round_ = world.open(2)
    round_.contributions = dict(old.contributions)
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "('films', 'run-1', 1, 1), but ('films', 'run-1', 2, 1)")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "run-0"}, "run-0"),
        ({"federation": "books"}, "books"),
        ({"epoch": 9}, "contribution has"),
        ({"catalogue_fingerprint": "00" * 32}, "different catalogue"),
        ({"plan_fingerprint": "00" * 32}, "different plan"),
        ({"protocol_version": "1.0"}, "protocol '1.0'"),
        ({"length": 10}, "announces 10 bytes"),
        ({"kind": "count"}, "a round of kind count from version 0, not of kind train"),
        ({"kind": "evaluate"}, "a round of kind evaluate from version 0, not of kind train"),
        ({"base_round": 5}, "a round of kind train from version 5, not of kind train"),
        ({"base_state": bytes(32)}, "from a different model"),
        ({"key_list": bytes(32)}, "reveal_refused"),
    ],
)
def test_a_contribution_to_something_else(world, key, changes, words):
    round_ = world.honest_round()
    member = world.puppets[0]
    world.put(round_, member, round_.contributions[member.client_id][1], **changes)
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, words)


def test_a_forged_signature(world, key):
    round_ = world.honest_round()
    member = world.puppets[0]
    header, payload = round_.contributions[member.client_id]
    by_another = world.puppets[1].sign(header.statement())
    round_.contributions[member.client_id] = (replace(header, signature=by_another), payload)
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "does not verify")


@pytest.mark.parametrize("changes", [{"kind": "evaluate"}, {"base_round": 5}])
def test_a_header_that_was_made_to_fit(world, key, changes):
    """The coordinator cannot write another kind or base over what a client signed."""
    round_ = world.honest_round()
    member = world.puppets[0]
    header, payload = round_.contributions[member.client_id]
    signed_otherwise = world.sign(member, 1, payload, **changes)
    made_to_fit = replace(header, signature=signed_otherwise.signature)
    round_.contributions[member.client_id] = (made_to_fit, payload)
    world.run_revealer(lambda: world.reveal(round_))
    refused(world, key, "does not verify")


@pytest.mark.parametrize("text", [0, 1])
def test_clients_that_were_told_different_bases(world, key, text):
    """Half of the clients are held at an older model, so that fewer share the newer one."""
    world.play(1)
    round_ = world.open(2)
    world.contribute(round_)
    held_back = world.puppets[0]
    world.put(round_, held_back, round_.contributions[held_back.client_id][1], base_round=0)
    world.run_revealer(lambda: world.reveal(round_, base_round=text))
    refused(world, key, f"starts from version {text}" if text == 0 else "not of kind train")


def test_a_contribution_that_cannot_be_read(world, key):
    round_ = world.honest_round()
    member = world.puppets[0]
    payload = bytes(world.protection.chosen.message_bytes)
    header = world.sign(member, 1, payload)
    honest = world.reveal(round_)
    round_.contributions[member.client_id] = (header, payload)
    world.run_revealer(lambda: replace(honest, contributions=round_.headers))
    refused(world, key, "aren't a message")


def test_the_manifest_is_on_disk_before_the_key_is_used(world, key, monkeypatch):
    round_ = world.honest_round()
    expected = manifest_digest(world.run, round_.number, round_.headers)

    def look(watch, total, n_summands, names=None):
        store = OpenedSums(world.keys.revealer.folder / STATE_FOLDER, read_only=True)
        opened = store.state.revealed_as(round_.number)
        assert opened is not None and opened.manifest_digest == expected
        assert opened.sum_digest == blake3(world.total(round_)).digest()
        raise Killed

    monkeypatch.setattr(KeyWatch, "reveal", look)
    with pytest.raises(Killed):
        world.run_revealer(lambda: world.reveal(round_))


@pytest.mark.parametrize("changes", [{"epoch": 0}, {"base_round": 5}])
def test_another_epoch_or_version(world, key, changes):
    round_ = world.honest_round()
    world.run_revealer(lambda: world.reveal(round_, **changes))
    refused(world, key)


def test_a_refusal_does_not_end_the_revealer(world, key):
    bad = world.open(1)
    world.contribute(bad, *world.puppets[:2])
    good = world.honest_round(2)
    world.run_revealer(lambda: world.reveal(bad), Wait, lambda: world.reveal(good))
    assert [statement.round for statement, _ in world.link.reveals] == [2]


@pytest.mark.parametrize("kind", ["count", "evaluate"])
def test_a_sum_that_hides_training_is_never_shown(world, kind):
    """Members with changed software sign one kind and send another.

    A count round's vector has no room for a change, but for what was measured.
    """
    round_ = world.open(1, kind)
    for number, puppet in enumerate(world.puppets):
        vector = world.vector(number, round_)
        vector[METRICS_SLICE if kind == "count" else slice(0, 8)] = 1
        world.put_vector(round_, puppet, vector)
    world.run_revealer(lambda: world.reveal(round_))
    assert world.link.reveals == []
    assert "reveal refused" in world.event_names()
    assert '"code":"sum_out_of_bounds"' in world.refusals()
    text = "participants is 3" if kind == "count" else "item_embedding of item row 0 is 3"
    assert f"of kind {kind}, {text}, but the allowed range is 0 to 0" in world.refusals()


def test_the_coordinator_is_told_why_and_signed(world, key):
    """A closed round waits for the authority's word, so that there has to be one."""
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[:2])
    world.run_revealer(lambda: world.reveal(round_), lambda: world.reveal(round_))
    first, again = world.link.declined
    chained = {"sequence": 2, "previous": first.digest(), "signature": again.signature}
    assert again == replace(first, **chained)
    verify(world.revealer.public.signing_key, again.statement(), again.signature)
    assert first.refused == "Round 1 has 2 contributions, but needs at least 3."
    verify(world.revealer.public.signing_key, first.statement(), first.signature)
    assert (first.metrics, first.state_tag) == (b"", bytes(32))
