"""Every call of the protocol is served: the generated classes answer one that nobody wrote."""

from __future__ import annotations

import pytest

from fedrec.wire.v1 import admin_pb2, coordinator_pb2
from fedrec_server.service.admin_service import AdminService
from fedrec_server.service.coordinator_service import CoordinatorService


@pytest.mark.parametrize(
    ("descriptor", "service"),
    [
        (admin_pb2.DESCRIPTOR.services_by_name["Admin"], AdminService),
        (coordinator_pb2.DESCRIPTOR.services_by_name["Coordinator"], CoordinatorService),
    ],
    ids=["Admin", "Coordinator"],
)
def test_every_method_is_written(descriptor, service):
    inherited = {
        method.name
        for method in descriptor.methods
        if getattr(service, method.name).__module__.endswith("_pb2_grpc")
    }
    assert inherited == set(), f"write these methods in {service.__module__}"
