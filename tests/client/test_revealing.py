"""What a key holder refuses to open, and that it does not touch its key while refusing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from client.fake_federation import Killed, World
from client.key_watch import KeyWatch, ask, puppet_round, put_watch, refused

from fedrec.errors import BadSignature
from fedrec.identity.metrics_lock import unlock
from fedrec.identity.public import verify
from fedrec.training.layout import METRICS_SLICE
from fedrec.wire.messages import Reveal, Wait
from fedrec_client.private_store import PrivateStore


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> KeyWatch:
    return put_watch(monkeypatch)


@pytest.mark.parametrize("role", ["reveal", "verify"])
def test_an_honest_sum_is_opened(world: World, key: KeyWatch, role: str) -> None:
    round_ = puppet_round(world)
    ask(world, lambda: world.reveal(round_, role))
    ((statement, sealed),) = world.link.reveals
    expected, _ = world.state_of(round_, world.puppets[0])
    assert statement.content() == expected.content()
    verify(world.identity.public.signing_key, statement.statement(), statement.signature)
    assert key.opened == [world.total(round_)]
    assert bool(sealed) == (role == "reveal")
    assert world.audit() == ""


def test_the_sealed_aggregate_is_what_others_apply(world: World) -> None:
    round_ = puppet_round(world)
    ask(world, lambda: world.reveal(round_))
    ((_, sealed),) = world.link.reveals
    known = world.membership(world.puppets[2])
    opened = known.vector_of("train", len(known.catalogue)).unpack(
        known.seal_of(round_.number, "train").unseal_aggregate(sealed), 1
    )
    assert (
        opened
        == known.vector_of("train", len(known.catalogue)).member.reveal(world.total(round_), 3)
    ).all()


def test_the_client_opens_a_round_it_took_part_in(world: World, key: KeyWatch) -> None:
    round_ = world.ask_to_train(1)
    ask(world, lambda: world.reveal(round_))
    assert len(world.link.reveals) == 1
    assert len(round_.contributions) == 4
    assert world.link.calls.count("contribution") == 3, "its own is in the outbox"


def test_a_single_ciphertext_is_not_opened_as_the_sum(world: World, key: KeyWatch) -> None:
    """The attack that matters: the coordinator passes one client's update off as the sum."""
    round_ = puppet_round(world)
    victim = round_.contributions[world.puppets[0].client_id][1]
    one = world.protection.accumulator(world.context)
    one.add(victim)
    for forged in (victim, one.finish()):
        task = world.reveal(round_, sum_digest=blake3(forged).digest(), sum_length=len(forged))
        ask(world, lambda task=task: task)  # type: ignore[misc]
    refused(world, key, "is not the sum of its 3 contributions")


def test_too_few_summands(world: World, key: KeyWatch) -> None:
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[:2])
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "has 2 contributions, expected at least 3")


def test_fewer_than_three_even_if_the_roster_says_so(tmp_path: Path, key: KeyWatch) -> None:
    world = World(tmp_path)
    world.epoch = world.make_epoch(minimum_summands=1)
    round_ = world.open(world.drawn_number(0))
    world.contribute(round_, *world.puppets[:2])
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "expected at least 3")


def test_the_rosters_minimum_counts(tmp_path: Path, key: KeyWatch) -> None:
    world = World(tmp_path, n_puppets=4)
    world.epoch = world.make_epoch(minimum_summands=4)
    round_ = world.open(world.drawn_number(0))
    world.contribute(round_, *world.puppets[:3])
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "expected at least 4")


@pytest.mark.parametrize("name", ["minimum_clients", "minimum_summands"])
def test_the_plans_minimum_counts(tmp_path: Path, key: KeyWatch, name: str) -> None:
    world = World(tmp_path, rounds={name: 4})
    round_ = puppet_round(world)
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "has 3 contributions, expected at least 4")


def test_a_contributor_listed_twice(world: World, key: KeyWatch) -> None:
    round_ = puppet_round(world)
    headers = round_.headers
    ask(world, lambda: world.reveal(round_, contributions=(*headers[:2], headers[0])))
    refused(world, key, "lists a client twice")


def test_one_client_with_two_different_updates(world: World, key: KeyWatch) -> None:
    round_ = puppet_round(world)
    first = world.puppets[0]
    other = world.sign(first, 1, world.half(first).protect(world.vector(9)))
    ask(world, lambda: world.reveal(round_, contributions=(*round_.headers[:2], other)))
    refused(world, key, "lists a client twice")


def test_a_contributor_whom_nobody_listed(world: World, key: KeyWatch) -> None:
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[:2])
    payload = world.half().protect(world.vector(5))
    world.put(round_, world.stranger, payload)
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "is not among the 4 members")


def test_a_replayed_contribution(world: World, key: KeyWatch) -> None:
    """Updates of another round, however well signed, do not enter this one's sum."""
    old = puppet_round(world, 1)
    round_ = world.open(2)
    round_.contributions = dict(old.contributions)
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "is about ('films', 'run-1', 1, 1)")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run": "run-0"}, "run-0"),
        ({"federation": "books"}, "books"),
        ({"epoch": 9}, "is about"),
        ({"catalogue_fingerprint": "00" * 32}, "another catalogue"),
        ({"plan_fingerprint": "00" * 32}, "another plan"),
        ({"protocol_version": "1.0"}, "protocol '1.0'"),
        ({"length": 10}, "announces 10 bytes"),
        ({"kind": "count"}, "a round of kind count from version 0, expected kind train"),
        ({"kind": "evaluate"}, "a round of kind evaluate from version 0, expected kind train"),
        ({"base_round": 5}, "a round of kind train from version 5, expected kind train"),
    ],
)
def test_a_contribution_to_something_else(
    world: World, key: KeyWatch, changes: dict[str, Any], words: str
) -> None:
    round_ = puppet_round(world)
    member = world.puppets[0]
    world.put(round_, member, round_.contributions[member.client_id][1], **changes)
    ask(world, lambda: world.reveal(round_))
    refused(world, key, words)


def test_a_forged_signature(world: World, key: KeyWatch) -> None:
    round_ = puppet_round(world)
    member = world.puppets[0]
    header, payload = round_.contributions[member.client_id]
    by_another = world.puppets[1].sign(header.statement())
    round_.contributions[member.client_id] = (replace(header, signature=by_another), payload)
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "does not verify")


@pytest.mark.parametrize("changes", [{"kind": "evaluate"}, {"base_round": 5}])
def test_a_header_that_was_made_to_fit(
    world: World, key: KeyWatch, changes: dict[str, Any]
) -> None:
    """The coordinator cannot write another kind or base over what a client signed."""
    round_ = puppet_round(world)
    member = world.puppets[0]
    header, payload = round_.contributions[member.client_id]
    told_otherwise = world.sign(member, 1, payload, **changes)
    made_to_fit = replace(header, signature=told_otherwise.signature)
    round_.contributions[member.client_id] = (made_to_fit, payload)
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "does not verify")


@pytest.mark.parametrize("others", ["train", "evaluate"])
@pytest.mark.parametrize("said", ["train", "evaluate"])
def test_clients_that_were_told_different_kinds(
    world: World, key: KeyWatch, others: str, said: str
) -> None:
    """One trains and the others only measure, or the other way round: no holder opens that."""
    round_ = world.open(1, others)
    world.contribute(round_)
    own = "evaluate" if others == "train" else "train"
    world.link.script.append(lambda: replace(world.train(round_), kind=own))
    ask(world, lambda: world.reveal(round_, kind=said))
    ((header, _),) = world.link.uploads
    assert (header.kind, len(round_.contributions)) == (own, 4)
    refused(world, key, f"expected kind {said} from version 0")
    assert world.published_round == 0


@pytest.mark.parametrize("said", [0, 1])
def test_clients_that_were_told_different_bases(world: World, key: KeyWatch, said: int) -> None:
    """Half of the clients are held at an older model, so that fewer share the newer one."""
    world.play(1)
    round_ = world.open(world.drawn_number(1))
    world.contribute(round_)
    held_back = world.puppets[0]
    world.put(round_, held_back, round_.contributions[held_back.client_id][1], base_round=0)
    ask(world, lambda: world.reveal(round_, base_round=said))
    refused(world, key, f"starts from version {said}" if said == 0 else "expected kind train")


def test_other_bytes_than_the_signed_ones(world: World, key: KeyWatch) -> None:
    round_ = puppet_round(world)
    other = world.half().protect(world.vector(8))
    world.link.payload_of = lambda contributor, payload: other
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "are not the signed ones")


def test_a_contribution_that_cannot_be_read(world: World, key: KeyWatch) -> None:
    round_ = puppet_round(world)
    member = world.puppets[0]
    payload = bytes(world.protection.chosen.message_bytes)
    header = world.sign(member, 1, payload)
    honest = world.reveal(round_)
    round_.contributions[member.client_id] = (header, payload)
    ask(world, lambda: replace(honest, contributions=round_.headers))
    refused(world, key, "not a message")


def test_a_sum_out_of_range_is_not_published(world: World) -> None:
    """A member encrypts what no honest client sends; the sum is opened and then withheld."""
    round_ = puppet_round(world)
    member = world.puppets[0]
    known = world.membership(member)
    wild = world.vector(0)
    wild[world.layout.metrics_slice] = world.plan.federation.maximum_users << 20
    for puppet in world.puppets:
        world.put(
            round_, puppet, known.vector_of("train", len(known.catalogue)).member.protect(wild)
        )
    ask(world, lambda: world.reveal(round_))
    assert world.link.reveals == []
    assert '"event":"reveal_refused"' in world.audit()


def test_a_second_manifest_for_the_same_round(tmp_path: Path, key: KeyWatch) -> None:
    """Two sums that differ by one client would show that client's update."""
    world = World(tmp_path, n_puppets=4)
    round_ = world.open(1)
    world.contribute(round_)
    ask(world, lambda: world.reveal(round_))
    assert len(key.opened) == 1
    round_.contributions.pop(world.puppets[3].client_id)
    ask(world, lambda: world.reveal(round_))
    assert len(key.opened) == 1
    assert len(world.link.reveals) == 1
    assert "was opened with other contributions before" in world.audit()


def test_the_manifest_is_on_disk_before_the_key_is_used(
    world: World, key: KeyWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_ = puppet_round(world)
    expected = world.membership().manifest_digest(round_.number, round_.headers)

    def look(watch: KeyWatch, total: bytes, n_summands: int, names: Any = None) -> None:
        store = PrivateStore(world.state, read_only=True)
        opened = store.revealed(round_.number)
        assert opened is not None and opened.manifest_digest == expected
        assert opened.sum_digest == blake3(world.total(round_)).digest()
        raise Killed

    monkeypatch.setattr(KeyWatch, "reveal", look)
    with pytest.raises(Killed):
        ask(world, lambda: world.reveal(round_))


def test_the_same_manifest_is_opened_again_after_a_crash(world: World, key: KeyWatch) -> None:
    round_ = puppet_round(world)

    def kill(name: str) -> None:
        if name == "submit_reveal":
            raise Killed

    world.link.before = kill
    with pytest.raises(Killed):
        ask(world, lambda: world.reveal(round_))
    world.link.before = lambda name: None
    ask(world, lambda: world.reveal(round_))
    assert len(world.link.reveals) == 1


def test_a_published_round_is_not_opened_again(world: World, key: KeyWatch) -> None:
    round_ = world.play(1)
    ask(world, lambda: world.reveal(round_))
    assert key.opened == []
    assert world.link.reveals == []
    assert "stale" in world.event_names()


def test_an_acknowledged_update_must_be_in_the_sum(world: World, key: KeyWatch) -> None:
    round_ = world.ask_to_train(1)

    def without_us() -> Reveal:
        round_.contributions.pop(world.identity.client_id)
        return world.reveal(round_)

    ask(world, without_us)
    refused(world, key, "left it out")


def test_an_update_in_our_name_that_we_did_not_make(world: World, key: KeyWatch) -> None:
    round_ = puppet_round(world)
    world.put(round_, world.identity, world.half().protect(world.vector(4)))
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "not in its outbox")


@pytest.mark.parametrize("changes", [{"epoch": 0}, {"base_round": 5}])
def test_another_epoch_or_version(world: World, key: KeyWatch, changes: dict[str, Any]) -> None:
    round_ = puppet_round(world)
    ask(world, lambda: world.reveal(round_, **changes))
    refused(world, key)


def test_more_contributions_than_can_be_recomputed(tmp_path: Path, key: KeyWatch) -> None:
    world = World(tmp_path, n_puppets=4, rounds={"recompute_limit": 3})
    round_ = world.open(1)
    world.contribute(round_, *world.puppets[:3])
    task = world.reveal(round_)
    world.contribute(round_)
    ask(world, lambda: replace(task, contributions=round_.headers))
    refused(world, key, "recompute_limit")


def test_nothing_is_revealed_without_encryption(tmp_path: Path, key: KeyWatch) -> None:
    world = World(tmp_path, protection="none")
    round_ = puppet_round(world)
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "nothing to reveal")


def test_a_refusal_does_not_end_the_client(world: World, key: KeyWatch) -> None:
    bad = world.open(1)
    world.contribute(bad, *world.puppets[:2])
    good = puppet_round(world, 2)
    world.link.script += [lambda: world.reveal(bad), Wait, lambda: world.reveal(good)]
    world.app().run()
    assert [statement.round for statement, _ in world.link.reveals] == [2]


@pytest.mark.parametrize("kind", ["count", "evaluate"])
def test_a_sum_that_hides_training_is_never_shown(world: World, kind: str) -> None:
    """Members with changed software sign one kind and send another.

    A count round's vector has no room for a change, but for what was measured.
    """
    round_ = world.open(1, kind)
    for number, puppet in enumerate(world.puppets):
        vector = world.vector(number, round_)
        vector[METRICS_SLICE if kind == "count" else slice(0, 8)] = 1
        world.put(round_, puppet, world.round_vector(round_, puppet).member.protect(vector))
    ask(world, lambda: world.reveal(round_))
    assert world.link.reveals == []
    assert "reveal_refused" in world.event_names()
    assert '"code":"sum_out_of_bounds"' in world.audit()
    said = "participants is 3" if kind == "count" else "item_embedding of item row 0 is 3"
    assert f"of kind {kind} {said}, allowed is 0 to 0" in world.audit()


def test_a_client_outside_the_committee(tmp_path: Path, key: KeyWatch) -> None:
    world = World(tmp_path, n_puppets=5)
    number = next(n for n in range(1, 100) if not world.is_drawn(n))
    round_ = puppet_round(world, number)
    ask(world, lambda: world.reveal(round_))
    refused(world, key, f"not in the committee of round {number}")


def test_a_committee_that_the_contributors_did_not_sign(world: World, key: KeyWatch) -> None:
    """A list for a second committee, made of updates that were sent for the first one."""
    round_ = puppet_round(world)
    ours = world.identity.client_id
    others = [p.client_id for p in world.puppets if p.client_id not in round_.committee]
    kept = [client for client in round_.committee if client != ours]
    round_.committee = (ours, kept[0], others[0])
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "for another committee")


def test_a_committee_that_was_chosen(tmp_path: Path, key: KeyWatch) -> None:
    """The coordinator asks a friend of its own, although others rank before it."""
    world = World(tmp_path, n_puppets=5)
    number = next(n for n in range(1, 100) if not world.is_drawn(n))
    round_ = world.open(number)
    round_.committee = (world.identity.client_id, *round_.committee[:2])
    world.contribute(round_)
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "not the one that was drawn")


def test_contributors_that_were_given_another_model(world: World, key: KeyWatch) -> None:
    round_ = world.open(1)
    world.contribute(round_)
    member = world.puppets[0]
    payload = round_.contributions[member.client_id][1]
    world.put(round_, member, payload, base_state=bytes(32))
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "from another model of version 0")


def test_no_metric_is_readable_before_two_agree(world: World, key: KeyWatch) -> None:
    """What one key holder sends says nothing about the metrics of the list that it was given."""
    round_ = puppet_round(world)
    ask(world, lambda: world.reveal(round_))
    ((said, sealed),) = world.link.reveals
    total = world.half().reveal(world.total(round_), 3)
    metrics = total[world.layout.metrics_slice].astype("<i8").tobytes()
    readable = b"".join((said.statement(), sealed))
    assert metrics not in readable
    assert not any(
        metrics[at : at + 8] in readable
        for at in range(0, len(metrics), 8)
        if metrics[at + 2 : at + 8] != bytes(6)
    )
    other = next(p for p in world.puppets if p.client_id in round_.committee)
    second, _ = world.state_of(round_, other)
    places = {c: place for place, c in enumerate(round_.committee, 1)}
    shares = {places[each.client_id]: each.share for each in (said, second)}
    assert unlock(said.locked_metrics, shares) == metrics
    with pytest.raises(BadSignature):
        unlock(said.locked_metrics, {places[said.client_id]: said.share})


def test_all_key_holders_seal_the_same_bytes(world: World) -> None:
    """So the digest of what is published can be, and is, among what two of them sign."""
    round_ = puppet_round(world)
    ask(world, lambda: world.reveal(round_))
    ((statement, sealed),) = world.link.reveals
    _, other = world.state_of(round_, world.puppets[1])
    assert sealed == other
    assert statement.published_digest == blake3(sealed).digest()
    assert statement.published_digest in statement.content()


def test_round_numbers_far_above_the_base_are_refused(tmp_path: Path, key: KeyWatch) -> None:
    """A coordinator that may choose among many numbers chooses who opens."""
    world = World(tmp_path)
    number = world.drawn_number(16)
    assert number > 16
    round_ = puppet_round(world, number)
    ask(world, lambda: world.reveal(round_))
    refused(world, key, "were abandoned, or their numbers were chosen")
