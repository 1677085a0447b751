"""What of the pages is not typed by a reader of the tests, what is held true of it, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from docs.pages import ROOT, Typed, numbered_blocks
from docs.weaker import (
    Check,
    arguments,
    container,
    entry_point,
    extras,
    files,
    is_json,
    nothing,
    settings,
    target,
)

LANGUAGES = ("sh", "console", "python", "toml", "json", "yaml", "ini")
"""Of blocks of these something is typed; others show what is printed, or draw."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weaker:
    """What is not typed.

    Attributes:
        starts: beginnings of what is meant.
        check: what is held true of it.
        why: it is not typed.
    """

    starts: tuple[str, ...]
    check: Check
    why: str


PACKAGES = "installs from a package index"

ENGINE = "needs docker or podman; `make e2e-containers` runs the shipped compose file"
DEVICE = "needs a CUDA device, or the tests that do"
DOWNLOADED = "needs a data set that people download themselves"

ELSEWHERE: dict[str, dict[str, str]] = {
    "README.md": {"from fedrec import": "tests/lab/test_public_names.py"},
    "docs/how-to/add-a-protection.md": {"": "tests/docs/test_toy_protections.py"},
    "docs/how-to/when-a-machine-is-lost.md": {"": "tests/e2e/test_lost_machines.py"},
    "docs/tutorial/a-toy-algorithm.md": {"": "tests/docs/test_toy_algorithm.py"},
}
"""What a test of its own types: by page, beginnings and the test."""

ACTIVATE = Weaker(
    starts=(". .venv/bin/activate",),
    check=nothing,
    why="the test has its own environment on the path",
)

WEAKER: dict[str, tuple[Weaker, ...]] = {
    "README.md": (Weaker(starts=("make ",), check=target, why=PACKAGES), ACTIVATE),
    "CONTRIBUTING.md": (
        Weaker(starts=("make ",), check=target, why="the tests themselves, and what takes hours"),
    ),
    "deploy/README.md": (
        Weaker(starts=("docker ",), check=container, why=ENGINE),
        Weaker(starts=("make ",), check=target, why=PACKAGES),
    ),
    "docs/explanation/algorithms.md": (
        Weaker(starts=("[algorithm]",), check=settings, why="lines of a plan, with no data"),
    ),
    "docs/explanation/cuda.md": (
        Weaker(starts=("fedrec doctor --device cuda",), check=arguments, why=DEVICE),
        Weaker(starts=("python -m pytest -m cuda",), check=nothing, why=DEVICE),
        Weaker(starts=("python benchmarks/",), check=files, why=DEVICE),
        Weaker(starts=("PYTHON=", "OUT="), check=files, why=DEVICE),
    ),
    "docs/explanation/update-structures.md": (
        Weaker(
            starts=("[update]",),
            check=settings,
            why="one ciphertext a value takes minutes; benchmarks/bench_clear_indices.py runs it",
        ),
    ),
    "docs/how-to/add-an-algorithm.md": (
        Weaker(
            starts=("[project.entry-points",),
            check=entry_point,
            why="a part of the tutorial's package, which is installed there",
        ),
    ),
    "docs/how-to/bring-your-own-data.md": (
        Weaker(
            starts=('[data]\npath = "filmtrust"',),
            check=settings,
            why=DOWNLOADED,
        ),
    ),
    "docs/how-to/choose-a-protection.md": (
        Weaker(
            starts=("[protection]",),
            check=settings,
            why="lines in place of those that `fedrec init` writes",
        ),
    ),
    "docs/how-to/deploy-with-containers.md": (
        Weaker(starts=("docker ",), check=container, why=ENGINE),
        Weaker(starts=("sudo ",), check=nothing, why="needs root's password"),
    ),
    "docs/how-to/hand-out-recommendations.md": (
        Weaker(starts=('{"version"',), check=is_json, why="an answer, which the test looks at"),
    ),
    "docs/how-to/install.md": (
        Weaker(starts=("make dist",), check=target, why=PACKAGES),
        Weaker(starts=("pip install",), check=extras, why=PACKAGES),
        Weaker(
            starts=("fedrec --version", "fedrec doctor"),
            check=arguments,
            why="`make dist` types them in every environment that it makes",
        ),
    ),
    "docs/how-to/release.md": (Weaker(starts=("make dist",), check=target, why=PACKAGES),),
    "docs/how-to/reproduce-a-paper.md": (
        Weaker(starts=("fedrec data import",), check=arguments, why=DOWNLOADED),
        Weaker(
            starts=("fedrec reproduce colr/ml-1m", "fedrec reproduce fedmf/filmtrust"),
            check=arguments,
            why=DOWNLOADED,
        ),
    ),
    "docs/how-to/run-a-client.md": (
        Weaker(
            starts=("[protection]",),
            check=settings,
            why="for another federation than the page's: one without encryption",
        ),
    ),
    "docs/how-to/run-a-coordinator.md": (
        Weaker(
            starts=("fedrec keys roster resume",),
            check=arguments,
            why="needs a client whose software was changed; tests/integration has one",
        ),
    ),
    "docs/how-to/provision-a-federation.md": (
        Weaker(starts=("[parties]",), check=settings, why="lines of settings with four clients"),
    ),
    "docs/how-to/use-a-ray-cluster.md": (
        Weaker(
            starts=("ray get-auth-token", "RAY_AUTH_MODE=token ray st"),
            check=nothing,
            why="needs the extra and other machines; tests/common/cluster/test_ray.py runs them",
        ),
        Weaker(starts=("[client]",), check=settings, why="lines of a client's settings"),
    ),
    "docs/how-to/watch-a-federation.md": (
        Weaker(starts=("[coordinator]",), check=settings, why="a line of a kit's settings"),
        Weaker(
            starts=("prometheus ",),
            check=files,
            why="waits for targets at their usual ports; tests/deploy/test_monitoring.py runs it",
        ),
    ),
    "docs/how-to/when-a-machine-is-lost.md": (
        Weaker(
            starts=(
                "fedrec keys backup authority.backup",
                "fedrec coordinator backup",
                "fedrec coordinator recover coordinator/",
                "fedrec coordinator run coordinator/",
                "fedrec keys restore authority.backup",
                "fedrec keys authority run fedrec.example:7447",
            ),
            check=arguments,
            why="what the drill does, which is typed, on other machines",
        ),
    ),
    "docs/reference/cli.md": (
        Weaker(starts=("fedrec demo",), check=arguments, why="a minute each; tests/e2e runs it"),
        Weaker(starts=("fedrec data import ml-1m",), check=arguments, why=DOWNLOADED),
        Weaker(starts=("fedrec doctor --device cuda:1",), check=arguments, why=DEVICE),
        Weaker(
            starts=("fedrec audit coordinator.toml",),
            check=arguments,
            why="typed in audit-a-run.md",
        ),
        Weaker(
            starts=("fedrec reproduce colr/ml-1m", "fedrec reproduce fedmf/filmtrust"),
            check=arguments,
            why=DOWNLOADED,
        ),
        Weaker(
            starts=("fedrec keys roster admit", "fedrec keys roster remove"),
            check=arguments,
            why="typed in add-and-remove-members.md",
        ),
        Weaker(
            starts=("fedrec client serve", "fedrec recommend client.toml"),
            check=arguments,
            why="typed in hand-out-recommendations.md",
        ),
        Weaker(starts=("curl ",), check=nothing, why="typed in hand-out-recommendations.md"),
    ),
    "docs/tutorial/first-federation.md": (
        Weaker(starts=("make setup",), check=target, why=PACKAGES),
        ACTIVATE,
    ),
}


def weaker_of(page: str, typed: Typed) -> Weaker | None:
    """Return how something is accounted for that is not typed."""
    for weaker in WEAKER.get(page, ()):
        if typed.text.startswith(weaker.starts):
            return weaker
    return None


def elsewhere(page: str, typed: Typed) -> bool:
    """Tell whether a test of its own types it."""
    return typed.text.startswith(tuple(ELSEWHERE.get(page, ())))


def all_typed(page: str) -> Iterator[Typed]:
    """Yield everything that a reader of a page types."""
    for block in numbered_blocks((ROOT / page).read_text(encoding="utf-8")):
        if block.language in LANGUAGES:
            yield from block.typed
