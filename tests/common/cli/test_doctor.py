"""`fedrec doctor` looks at everything and breaks at nothing."""

from __future__ import annotations

import re

import pytest

from fedrec.arithmetic import Arithmetic, arithmetic_of
from fedrec.cli import doctor as doctor_module
from fedrec.cli.doctor import examine
from fedrec.extras import install_command
from fedrec.probes import fingerprint, look

# They measure the machine and train on it.
pytestmark = pytest.mark.slow


def test_this_machine_is_well(fedrec):
    outcome = fedrec("doctor", "--json")
    assert outcome.code == 0
    assert outcome.json["ok"] is True
    names = [finding["name"] for finding in outcome.json["findings"]]
    assert len(names) == len(set(names))
    assert {"Python", "numpy", "tenseal", "loopback", "cache"} <= set(names)
    assert {"encryption, bfv", "encryption, paillier"} <= set(names)
    assert all(set(f) == {"name", "verdict", "found", "remedy"} for f in outcome.json["findings"])


def test_it_tells_the_bits_of_this_machine(fedrec):
    bits = fedrec("doctor", "--json").json["bits"]
    probes = {probe.name: probe.digest for probe in look()}
    assert bits["probes"] == probes
    assert bits["fingerprint"] == fingerprint(look())
    own = arithmetic_of("cpu")
    assert bits["arithmetic"].pop("digest") == own.digest()
    assert Arithmetic.from_json(bits["arithmetic"]) == own
    shown = fedrec("doctor").out
    assert f"Fingerprint of the probes: {bits['fingerprint']}\n" in shown
    assert all(f"  {digest}  {name}\n" in shown for name, digest in probes.items())
    assert f"Arithmetic: {own.digest()}\n" in shown


def test_a_package_that_is_missing_or_old(monkeypatch):
    requires = ["numpy>=99", "nosuchthing>=1", "alsonot>=1; extra == 'client'", "hypothesis>=1"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: requires)
    found = {finding.name: finding for finding in examine()}
    assert found["numpy"].verdict == "warn"
    assert found["numpy"].remedy == "pip install 'numpy>=99'"
    assert found["nosuchthing"].verdict == "fail"
    assert found["alsonot"].verdict == "warn"
    assert found["alsonot"].remedy == install_command("client")


def test_a_check_that_breaks_is_a_finding(fedrec, monkeypatch):
    def _encryption() -> None:
        raise OSError("no such library")

    monkeypatch.setattr(doctor_module, "_CHECKS", (_encryption,))
    outcome = fedrec("doctor")
    assert outcome.code == 1
    assert outcome.out.startswith("fail encryption: OSError: no such library\n")


def test_a_cache_that_cannot_be_written_is_a_warning(monkeypatch):
    monkeypatch.setenv("FEDREC_CACHE", "/proc/version/fedrec")
    (finding,) = [finding for finding in examine() if finding.name == "cache"]
    assert finding.verdict == "warn"
    assert "FEDREC_CACHE" in finding.remedy


def test_without_colour_there_is_no_escape_sequence(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    finding = doctor_module.DoctorCheck(name="python", verdict="ok", found="3.12", remedy="")
    assert next(iter(doctor_module._text([finding]))) == "ok   python: 3.12"


def test_a_step_is_trained_on_the_device_that_is_named(fedrec):
    outcome = fedrec("doctor", "--device", "cpu", "--json")
    assert outcome.code == 0
    (found,) = [finding for finding in outcome.json["findings"] if finding["name"] == "training"]
    assert found["verdict"] == "ok"
    assert re.fullmatch(r"a step on cpu takes \d+\.\d{3} s, the first \d+\.\d{3}", found["found"])


def test_a_device_that_cannot_be_taken_fails(fedrec):
    outcome = fedrec("doctor", "--device", "mps", "--json")
    assert outcome.code == 1
    (found,) = [finding for finding in outcome.json["findings"] if finding["name"] == "training"]
    assert found["verdict"] == "fail"
    assert '"mps"' in found["found"]
    assert "cuda:N" in found["found"]
    assert "auto" in found["remedy"]
