"""What compose makes of deploy/compose.yaml together with the override for a GPU."""

from __future__ import annotations

import pytest
import yaml
from containers.engine import Engine, call
from containers.federation import CLIENTS

pytestmark = pytest.mark.containers

FILES = ("deploy/compose.yaml", "deploy/compose.cuda.yaml")


def test_clients_get_a_gpu_and_an_image_of_their_own(engine: Engine) -> None:
    files = [part for path in FILES for part in ("--file", path)]
    merged = call((*engine.compose, *files, "config"), environment=engine.environment)
    services = yaml.safe_load(merged)["services"]
    for name in CLIENTS:
        service = services[name]
        assert service["image"] == "fedrec-client:cuda"
        given = service["build"]["args"]
        # Some list what others map; the last one holds.
        args = given if isinstance(given, dict) else dict(arg.split("=", 1) for arg in given)
        assert args["TORCH_INDEX"] == ""
        assert service["environment"]["FEDREC_CLIENT__DEVICE"] == "auto"
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], int(device["count"])) == ("nvidia", 1)
        assert device["capabilities"] == ["gpu"]
        # All else is as without: read-only, and its kit in its own volume.
        assert service["read_only"] is True
        assert len(service["volumes"]) == 1
    for name in ("coordinator", "authority"):
        assert "deploy" not in services[name]
