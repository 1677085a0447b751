"""What the container files say of each other and of the package, and the job that fills volumes."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedrec.settings.validation import load_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE)["services"]
CLIENTS = ("client-1", "client-2", "client-3")
PARTIES = ("authority", "coordinator", *CLIENTS)


def test_what_images_copy_is_let_through_to_the_build():
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    let_through = [line[1:] for line in lines if line.startswith("!")]
    copied = [
        path
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for path in line.split()[:-1]
        if not path.startswith("--")
    ]
    assert len(copied) >= 5
    for path in copied:
        # The wheel may not have been made yet.
        assert (ROOT / path).is_file() or path == "dist/fedrec-*.whl"
        assert any(fnmatch(path, pattern) for pattern in let_through), path


def test_extras_and_targets_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(re.findall(r"install\.sh (\w+)$", DOCKERFILE, re.MULTILINE))
    assert extras == {"server", "authority", "client"}
    assert extras <= set(project["optional-dependencies"])
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, re.MULTILINE))
    targets = set(re.findall(r"^\s+target: (\S+)$", COMPOSE, re.MULTILINE))
    assert targets == {"setup", "coordinator", "authority", "client"}
    assert targets <= stages


def test_torch_is_in_no_image_but_the_clients():
    stage = ""
    for line in DOCKERFILE.splitlines():
        if line.startswith("FROM "):
            stage = line.rpartition(" AS ")[2]
        if line.endswith(" torch"):
            assert stage == "client-builder"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in ("server", "authority"):
        assert not any("torch" in one for one in extras["optional-dependencies"][extra])


def test_what_is_compiled_is_compiled_when_the_image_is_built():
    built, chosen = re.findall(
        r"python compile\.py (\S+)$|NUMBA_CACHE_DIR=(\S+)", DOCKERFILE, re.MULTILINE
    )
    assert built[0] == chosen[1]
    cache = re.findall(r"FEDREC_CACHE=(\S+)", DOCKERFILE)
    # What another kind of processor compiles goes where a read-only container can write.
    assert Path(cache[0]).parent == Path("/tmp")
    assert all(SERVICES[party]["tmpfs"] == ["/tmp"] for party in CLIENTS)


def test_nothing_is_privileged_and_nothing_writes_outside_its_volumes():
    for service in SERVICES.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
    users = re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)
    assert users == ["10001:10001"] * 4


def test_clients_and_the_key_authority_share_no_network():
    networks = {name: set(service["networks"]) for name, service in SERVICES.items()}
    assert not any(networks["authority"] & networks[client] for client in CLIENTS)
    assert all(networks[party] & networks["coordinator"] for party in PARTIES)


def test_monitoring_reads_every_party_and_mounts_no_kit():
    chosen = {name for name, found in SERVICES.items() if found.get("profiles") == ["monitoring"]}
    assert chosen == {"prometheus", "grafana"}
    for name in chosen:
        volumes = [volume.partition(":")[0] for volume in SERVICES[name]["volumes"]]
        assert not set(volumes) & set(PARTIES)
        # Its pages are for this machine alone, and its configuration is here.
        assert all(port.startswith("127.0.0.1:") for port in SERVICES[name]["ports"])
        assert all((DEPLOY / volume).is_file() for volume in volumes if volume.startswith("."))
    read = yaml.safe_load((DEPLOY / "monitoring" / "prometheus.compose.yml").read_text())
    targets = {
        target
        for job in read["scrape_configs"]
        for one in job["static_configs"]
        for target in one["targets"]
    }
    served = {
        "coordinator": SERVICES["coordinator"]["environment"][
            "FEDREC_COORDINATOR__METRICS_ADDRESS"
        ],
        "authority": next(
            part.partition("=")[2]
            for part in SERVICES["authority"]["command"]
            if part.startswith("--metrics-address")
        ),
        **{
            party: SERVICES[party]["environment"]["FEDREC_CLIENT__METRICS_ADDRESS"]
            for party in CLIENTS
        },
    }
    assert targets == {f"{party}:{where.rpartition(':')[2]}" for party, where in served.items()}


def test_with_a_gpu_clients_alone_differ():
    cuda = yaml.safe_load((DEPLOY / "compose.cuda.yaml").read_text(encoding="utf-8"))
    assert set(cuda["services"]) == set(CLIENTS)
    for service in cuda["services"].values():
        # Another image, of pip's own index, which has torch with CUDA.
        assert service["image"] != SERVICES["client-1"]["image"]
        assert service["build"]["args"] == {"TORCH_INDEX": ""}
        assert service["environment"] == {"FEDREC_CLIENT__DEVICE": "auto"}
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


def test_each_party_has_a_volume_that_no_other_service_mounts():
    settings = load_settings(DEPLOY / "federation.toml")
    assert tuple(settings.parties.clients) == CLIENTS
    assert settings.parties.address == f"coordinator:{settings.coordinator.port}"
    assert settings.protection.key_holder == "authority"
    for party in PARTIES:
        assert f"/federation/{party}" in COMPOSE
        mounts = re.findall(rf'"{party}:(\S+)"', COMPOSE)
        assert mounts == ["/var/lib/fedrec"]


@pytest.fixture
def prepare(tmp_path):
    """Return what runs the setup job as its container does, with data of its own to fetch."""
    volumes = tmp_path / "federation"
    for folder in (*PARTIES, "monitoring"):
        (volumes / folder).mkdir(parents=True)
    users = [(user, item) for user in range(1, 31) for item in range(user % 5, 40, 3)]
    data = "user_id,item_id\n" + "\n".join(f"{user},{item}" for user, item in users)
    (tmp_path / "small.csv").write_text(data + "\n", encoding="utf-8")
    commands = tmp_path / "bin"
    commands.mkdir()
    fedrec = commands / "fedrec"
    fedrec.write_text(
        "#!/bin/sh\n"
        'if [ "$1 $2" = "data fetch" ]; then\n'
        f'  mkdir -p "$5" && cp {tmp_path / "small.csv"} "$5/interactions.csv"; exit\n'
        "fi\n"
        f'exec {sys.executable} -m fedrec "$@"\n',
        encoding="utf-8",
    )
    fedrec.chmod(0o755)

    def run(settings: Path = DEPLOY / "federation.toml") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(DEPLOY / "prepare.sh"), str(settings), str(volumes)],
            env=os.environ | {"PATH": f"{commands}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    return volumes, run


def test_the_setup_job_puts_each_kit_into_its_volume(prepare):
    volumes, run = prepare
    # An earlier job was killed in the middle.
    (volumes / "client-2" / "client.toml").write_text("half", encoding="utf-8")
    done = run()
    assert done.returncode == 0, done.stderr
    for client in CLIENTS:
        settings = load_settings(volumes / client / "client.toml")
        assert settings.client.coordinator == "coordinator:7447"
        assert settings.client.label == client
        assert (volumes / client / "interactions.csv").is_file()
        assert not (volumes / client / "state").exists()
        secret = volumes / client / "invitation.pem"
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert load_settings(volumes / "coordinator" / "coordinator.toml").coordinator.port == 7447
    assert (volumes / "authority" / "operator.pem").is_file()
    assert not list(volumes.rglob("coordinator/*.secret"))
    tokens = list(volumes.rglob("metrics-token"))
    assert {path.parent.name for path in tokens} == {*PARTIES, "monitoring"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tokens} == {0o600}
    (token,) = {path.read_text() for path in tokens}
    assert len(token.strip()) >= 32
    made = (volumes / "client-1" / "invitation.pem").read_bytes()
    again = run()
    assert again.returncode == 0
    assert "prepared already" in again.stdout
    assert (volumes / "client-1" / "invitation.pem").read_bytes() == made


def test_the_setup_job_stops_at_settings_that_mean_nothing(prepare, tmp_path):
    volumes, run = prepare
    wrong = tmp_path / "wrong.toml"
    shutil.copy(DEPLOY / "federation.toml", wrong)
    text = wrong.read_text(encoding="utf-8").replace('structure = "dense"', 'structure = "colr"')
    wrong.write_text(text, encoding="utf-8")
    done = run(wrong)
    assert done.returncode != 0
    assert "update.structure" in done.stderr
    assert not (volumes / "authority" / "prepared").exists()
    assert run().returncode == 0
