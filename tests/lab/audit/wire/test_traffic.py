"""Recorded calls that were made up: streams are put together, and what is foreign is named."""

import numpy as np
import pytest

from fedrec.protection import PROTECTIONS
from fedrec.settings.validation import load_settings
from fedrec.wire.v1 import coordinator_pb2, model_pb2, update_pb2
from fedrec_lab.audit.wire.known import Known
from fedrec_lab.audit.wire.traffic import BlobKey

from .conftest import CLIENTS, Recording, planned, problems_of

UPLOAD, ANSWER = BlobKey("SubmitUpdate", "request"), BlobKey("FetchPublished", "response")


@pytest.fixture(scope="module")
def known(workspace):
    return Known.of(load_settings(workspace.parties.coordinator))


@pytest.fixture
def recording(tmp_path, known):
    return Recording(tmp_path / "a.frames", known)


def test_an_upload_that_went_on_in_another_call_is_one(recording, known):
    """Of what was sent first the last 100 bytes were not durable, and came again."""
    blob = planned(known)
    end = len(blob)
    recording.upload(1, CLIENTS[0], blob, slice(0, 1000))
    recording.upload(3, CLIENTS[1], other := planned(known), slice(0, end))
    recording.upload(2, CLIENTS[0], blob, slice(900, 2000), slice(2000, end))
    traffic = recording.traffic()
    tally = traffic.blobs[UPLOAD]
    assert (tally.blobs, tally.incomplete) == (2, 0)
    assert tally.by_client == {CLIENTS[0]: (1, 0), CLIENTS[1]: (1, 0)}
    assert traffic.sizes[UPLOAD].all_lengths == (len(other),)
    assert problems_of(traffic) == []


def test_an_upload_that_never_ended_is_looked_at_all_the_same(recording, known):
    recording.upload(1, CLIENTS[0], bytes(known.protection.chosen.message_bytes), slice(0, 5000))
    traffic = recording.traffic()
    assert (traffic.blobs[UPLOAD].blobs, traffic.blobs[UPLOAD].incomplete) == (1, 1)
    assert any("runs of zeros" in problem for problem in problems_of(traffic))


def test_two_clients_with_the_same_bytes_are_told(recording, known):
    blob = planned(known)
    for call, client in enumerate(CLIENTS, start=1):
        recording.upload(call, client, blob, slice(0, len(blob)))
    (problem,) = problems_of(recording.traffic())
    assert "1 are what another client sent, byte for byte" in problem


def test_an_unsealed_sum_is_reported(recording, known):
    """The blob is announced within another message, and its chunks follow."""
    spec = known.vectors.trained(256)
    values = np.arange(spec.length, dtype=np.int64) % 3
    plain = PROTECTIONS["none"](spec, PROTECTIONS["none"].plan(spec))
    blob = plain.member(*plain.generate()).protect(values)
    header = update_pb2.BlobHeader(length=len(blob), digest=bytes(32))
    published = model_pb2.Published(round=1, blob=header)
    request = coordinator_pb2.FetchPublishedRequest(client_id=CLIENTS[0])
    recording.add(1, "FetchPublished", request)
    recording.add(1, "FetchPublished", model_pb2.PublishedPart(published=published), "response")
    part = model_pb2.PublishedPart(chunk=update_pb2.Chunk(offset=0, data=blob))
    recording.add(1, "FetchPublished", part, "response")
    traffic = recording.traffic()
    assert traffic.blobs[ANSWER].by_client == {CLIENTS[0]: (1, 1)}
    assert any(
        f"1 of 1 were readable without any key, {len(values):,} values" in problem
        for problem in problems_of(traffic)
    )


def test_documents_that_are_not_the_public_ones_are_told(recording, known):
    answer = coordinator_pb2.Federation(
        plan_json=b'{"users": ["anna"]}', server_context=known.context + b"a key"
    )
    recording.add(1, "GetFederation", coordinator_pb2.GetFederationRequest(client_id=CLIENTS[0]))
    recording.add(1, "GetFederation", answer, "response")
    plan, context = sorted(problems_of(recording.traffic()))
    assert plan.startswith("Federation.plan_json is not the coordinator's public file")
    assert "A coordinator's context has 56 bytes and no key. This one has 61 bytes." in context


def test_what_is_none_of_the_protocol_is_counted(recording):
    recording.add(1, "SendEverything", b"all of it")
    recording.add(2, "NextTask", b"\xff\xff\xff")
    traffic = recording.traffic()
    assert dict(traffic.unreadable) == {"SendEverything": 1, "NextTask": 1}
