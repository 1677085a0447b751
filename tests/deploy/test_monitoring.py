"""Prometheus, as Debian has it, reads a live federation; every alert fires and clears."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from debian import install
from world.clock import poll
from world.kits import commands

from fedrec.data import generate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
RUNBOOK = ROOT / "docs" / "how-to" / "runbook"
ALERTS = (MONITORING / "alerts.yml").read_text(encoding="utf-8")
NAMES = re.findall(r"- alert: (\w+)", ALERTS)
DAY = 86_400


@pytest.fixture(scope="module")
def tools():
    """Install Debian's Prometheus, which carries promtool, where it is not there."""
    install("prometheus", "promtool", "prometheus")


# One sample a minute. What each alert needs to fire, a minute by which it does, and one by which it
# has cleared; `expected` is how many series fire.
PARTY = '{job="fedrec-coordinator", instance="c"}'
AUTHORITY = '{job="fedrec-authority", instance="a"}'
CLIENT = '{job="fedrec-client", instance="h"}'
CASES: dict[str, tuple[dict[str, str], int, int]] = {
    "FedrecPartyDown": (
        {f"up{CLIENT}": "1x4 0x10 1x20", f"fedrec_run_finished{PARTY}": "0x40"}, 9, 20,
    ),
    "FedrecRunFailed": ({f"fedrec_run_failed{PARTY}": "0x4 1x10 0x20"}, 7, 20),
    "FedrecRunStalled": ({f"fedrec_run_stalled{PARTY}": "0x4 1x10 0x20"}, 8, 20),
    "FedrecRoundWaits": (
        {
            f"fedrec_awaited_clients{PARTY}": "2x60 0x20",
            f'fedrec_rounds_total{{outcome="published", {PARTY[1:]}': "0+1x10 10x50 11+1x20",
        }, 40, 70,
    ),
    "FedrecRoundsAbandoned": (
        {f'fedrec_rounds_total{{outcome="abandoned", {PARTY[1:]}': "0x10 1 2 3 4x60"}, 15, 60,
    ),
    "FedrecAuthorityAway": (
        {
            # Heard of at the beginning of every minute, then not for twenty, then again.
            f"fedrec_authority_heard_timestamp_seconds{PARTY}": "0+60x10 600x20 1860+60x20",
            f"fedrec_run_finished{PARTY}": "0x60",
        }, 20, 40,
    ),
    "FedrecRevealRefused": (
        {f'fedrec_authority_sums_total{{outcome="refused", {AUTHORITY[1:]}': "0x5 1x120"}, 10, 80,
    ),
    "FedrecCallsRefused": (
        {f'fedrec_calls_refused_total{{code="not_a_member", {PARTY[1:]}': "0x5 0+10x5 60x30"},
        10, 30,
    ),
    "FedrecDiskLow": (
        {
            f"fedrec_disk_free_bytes{PARTY}": "9e9x5 2e8x10 9e9x20",
            f"fedrec_disk_reserve_bytes{PARTY}": "67108864x40",
        }, 10, 20,
    ),
    "FedrecClientDiskFull": ({f"fedrec_client_disk_full{CLIENT}": "0x5 1x5 0x20"}, 8, 15),
    "FedrecClientCannotReachCoordinator": (
        {
            f"fedrec_client_coordinator_reachable{CLIENT}": "1x5 0x15 1x20",
            f"fedrec_client_finished{CLIENT}": "0x50",
        }, 15, 30,
    ),
    "FedrecClientDiverged": (
        {f'fedrec_client_events_total{{event="diverged", {CLIENT[1:]}': "0x5 1x120"}, 10, 80,
    ),
    "FedrecCoordinatorWentBack": (
        {f'fedrec_client_events_total{{event="coordinator_went_back", {CLIENT[1:]}': "0x5 1x120"},
        10, 80,
    ),
    "FedrecPrivacyBudgetLow": (
        {
            f"fedrec_privacy_sums{PARTY}": "80x5 95x10 10x20",
            f"fedrec_privacy_allowed_sums{PARTY}": "100x40",
        }, 10, 20,
    ),
    "FedrecQualityFell": (
        {f'fedrec_ndcg{{split="validation", {PARTY[1:]}': "0.1x5 0.07x15 0.1x20"}, 15, 30,
    ),
    "FedrecCertificateExpires": (
        # A good one, one with thirteen days left, and the one that took its place.
        {
            f"fedrec_certificate_expiry_timestamp_seconds{PARTY}":
            f"{365 * DAY}x4 {13 * DAY}x10 {365 * DAY}x20",
        }, 8, 20,
    ),
}  # fmt: skip


def test_every_alert_has_a_case_and_a_page():
    assert sorted(CASES) == sorted(NAMES)
    pages = re.findall(r"runbook: docs/how-to/runbook/(\S+)\.md", ALERTS)
    assert len(pages) == len(NAMES)
    assert sorted(pages) == sorted(
        path.stem for path in RUNBOOK.glob("*.md") if path.stem != "README"
    )
    for name, page in zip(NAMES, pages, strict=True):
        text = (RUNBOOK / f"{page}.md").read_text(encoding="utf-8")
        assert f"`{name}`" in text, f"{page}.md does not name {name}"
        assert [
            head for head in ("What it means", "What to look at", "What to do") if head not in text
        ] == []


def rule_tests(name: str, *, fires: bool) -> dict[str, Any]:
    """Return what promtool is to find; JSON is YAML."""
    series, fired, cleared = CASES[name]
    query = f'count by (alertname) (ALERTS{{alertname="{name}", alertstate="firing"}})'
    found = [{"labels": f'{{alertname="{name}"}}', "value": 1}]
    return {
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": "2m", "exp_samples": []},
            {"expr": query, "eval_time": f"{fired}m", "exp_samples": found if fires else []},
            {"expr": query, "eval_time": f"{cleared}m", "exp_samples": []},
        ],
    }


def promtool(folder: Path, tests: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    """Run tests of the shipped rules."""
    shutil.copy(MONITORING / "alerts.yml", folder)
    content = {"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests}
    (folder / "tests.yml").write_text(json.dumps(content))
    command = ["promtool", "test", "rules", "tests.yml"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


def test_every_alert_fires_and_clears(tools, tmp_path):
    passed = promtool(tmp_path, [rule_tests(name, fires=True) for name in NAMES])
    assert passed.returncode == 0, passed.stdout + passed.stderr
    # It tells where one does not: each alert is missed where it is expected not to fire.
    failed = promtool(tmp_path, [rule_tests(name, fires=False) for name in NAMES])
    assert failed.returncode != 0
    output = failed.stdout + failed.stderr
    assert [name for name in NAMES if f'alertname="{name}"' not in output] == []


def test_the_shipped_configuration_is_valid(tools):
    command = ["promtool", "check", "config", str(MONITORING / "prometheus.yml")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout + found.stderr


def free_ports(n_ports: int) -> list[int]:
    """Return free ports."""
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(n_ports)]
    found = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return found


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """Run a coordinator, the key authority and three clients; yield where three are read."""
    made = generate(
        n_users=90, n_items=60, n_clusters=2, interactions_per_user=20, noise=0.2, seed=5
    )
    data = tmp_path / "data.csv"
    pairs = zip(made.interactions.user_ids, made.interactions.item_ids, strict=True)
    data.write_text("user,item\n" + "".join(f"{user},{item}\n" for user, item in pairs))
    port, *own = free_ports(4)
    address = f"127.0.0.1:{port}"
    read_at = [f"127.0.0.1:{number}" for number in own]
    with commands() as start:
        provision = start(
            tmp_path / "provision.log", "provision", "--data", str(data), "--clients", "a,b,c",
            "--address", address,
        )  # fmt: skip
        assert provision.ended() == 0, provision.output
        monkeypatch.setenv("FEDREC_COORDINATOR__METRICS_ADDRESS", read_at[0])
        for party in ("COORDINATOR", "CLIENT"):
            monkeypatch.setenv(f"FEDREC_{party}__LOG_FORMAT", "json")
        kits = tmp_path / "kits"
        start(
            tmp_path / "coordinator.log",
            "coordinator", "run", str(kits / "coordinator" / "coordinator.toml"),
        ).first_line()  # fmt: skip
        start(
            tmp_path / "authority.log", "keys", "authority", "run", address,
            "--into", str(kits / "authority"), "--every-seconds", "0.5",
            "--metrics-address", read_at[1], "--log-format", "json",
        )  # fmt: skip
        for name in "abc":
            monkeypatch.setenv("FEDREC_CLIENT__METRICS_ADDRESS", read_at[2] if name == "a" else "")
            start(
                tmp_path / f"{name}.log",
                "client", "run", str(kits / "clients" / name / "client.toml"),
            )  # fmt: skip
        yield read_at


def configuration(read_at: list[str]) -> str:
    """Return the shipped configuration with the addresses of this run, read every second."""
    text = (MONITORING / "prometheus.yml").read_text(encoding="utf-8")
    for shipped, own in zip(("9464", "9465", "9466"), read_at, strict=True):
        assert text.count(f'"127.0.0.1:{shipped}"') == 1
        text = text.replace(f'"127.0.0.1:{shipped}"', f'"{own}"')
    return text.replace("_interval: 15s", "_interval: 1s")


def dashboard_queries() -> list[str]:
    """Return every query of the shipped dashboard, for a window of one minute."""
    board = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    targets = [target for panel in board["panels"] for target in panel.get("targets", ())]
    return [target["expr"].replace("$__rate_interval", "1m") for target in targets]


def answers(address: str, query: str) -> list[Any]:
    """Return the series that Prometheus answers a query with."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = json.load(answer)
    assert found["status"] == "success", found
    return list(found["data"]["result"])


@pytest.mark.long
def test_every_query_of_the_dashboard_has_an_answer(tools, federation, tmp_path):
    folder = tmp_path / "prometheus"
    folder.mkdir()
    shutil.copy(MONITORING / "alerts.yml", folder)
    (folder / "prometheus.yml").write_text(configuration(federation))
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    with (folder / "log").open("w") as log:
        prometheus = subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address={address}",
             "--storage.tsdb.path=data"],
            cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        queries = dashboard_queries()
        assert len(queries) > 40
        missing = list(queries)

        def answered() -> bool:
            assert prometheus.poll() is None, (folder / "log").read_text()
            with suppress(urllib.error.URLError):
                missing[:] = [query for query in missing if not answers(address, query)]
            time.sleep(0.2)
            return not missing

        try:
            poll(answered, "an answer to every query")
        except AssertionError:
            pytest.fail(f"no answer to {missing}")
        series = answers(address, '{__name__=~"fedrec_.+"}')
        labels = {name for one in series for name in one["metric"]}
        assert labels == {
            "__name__", "instance", "job", "outcome", "phase", "le", "code", "split", "event",
            "version", "party",
        }  # fmt: skip
        assert {one["metric"]["job"] for one in series} == {
            "fedrec-coordinator", "fedrec-authority", "fedrec-client",
        }  # fmt: skip
        assert answers(address, 'ALERTS{alertstate="firing", severity="page"}') == []
        for party, event in (("coordinator", "round published"), ("b", "published")):
            lines = (tmp_path / f"{party}.log").read_text().splitlines()
            assert event in {json.loads(line)["event"] for line in lines}
    finally:
        prometheus.terminate()
        prometheus.wait(30)
