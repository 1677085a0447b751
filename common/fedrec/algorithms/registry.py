"""The registry of algorithms: fedrec's own, and those of installed packages.

A package adds one by an entry point of the group `fedrec.algorithms`. Imports depend on what the
owner of this machine has installed, never on a plan. A plan only names one of these algorithms, and
an unknown name is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

from fedrec.algorithms.algorithm import Algorithm, Derived
from fedrec.algorithms.declarations import About, Advice, Exposure, Support
from fedrec.algorithms.exact import ExactAlgorithm
from fedrec.algorithms.sent import Sent
from fedrec.algorithms.trained import TrainedAlgorithm
from fedrec.errors import SettingsError

ENTRY_POINTS = "fedrec.algorithms"
_MOVED = (
    "problem",
    "exact",
    "combination_reason",
    "exposed_in_the_clear",
    "exposed_to_members",
    "sums_minibatches",
    "steps_every_row",
    "inner_product",
)
"""Names of earlier releases for parts of `about`, of phases, and for `folding_pull`."""


class Registry(Mapping[str, type[Algorithm]]):
    """Algorithms by name, fedrec's own first.

    All are loaded at the first look-up, not when this module is imported: entry points import
    fedrec itself, and an algorithm around another one looks that up here.

    Args:
        own: fedrec's own, each as `module:class`.

    Raises:
        SettingsError: at a look-up, if an installed package adds something that is not an
            algorithm.
    """

    def __init__(self, own: Mapping[str, str]) -> None:
        self._own = own

    @cached_property
    def _all(self) -> dict[str, type[Algorithm]]:
        found: dict[str, type[Algorithm]] = {
            name: EntryPoint(name, where, ENTRY_POINTS).load() for name, where in self._own.items()
        }
        for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
            found[point.name] = _loaded(point, taken=point.name in found)
        return found

    def __getitem__(self, name: str) -> type[Algorithm]:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


def _loaded(point: EntryPoint, *, taken: bool) -> type[Algorithm]:
    package = point.dist.name if point.dist else "a package"
    remedy = f"Correct {package}, or uninstall it."
    about = f"{package} adds the algorithm {point.name!r} as {point.value}"
    if taken:
        raise SettingsError(f"{about}, but that name is taken.", remedy=remedy)
    try:
        kind = point.load()
    except Exception as error:
        raise SettingsError(
            f"{about}, which cannot be imported: {type(error).__name__}: {error}.", remedy=remedy
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, TrainedAlgorithm | ExactAlgorithm)):
        raise SettingsError(
            f"{about}, which is not a subclass of TrainedAlgorithm or ExactAlgorithm.",
            remedy=remedy,
        )
    if kind.name != point.name:
        raise SettingsError(
            f"{about}, but its settings have the name {kind.name!r}.",
            remedy=f"Set `name` of the settings to the name of the entry point in {package}.",
        )
    # Otherwise, facts that an older package declares on its class, such as its exposure, would be
    # ignored.
    parts = (About, Support, Exposure, Advice)
    moved = {*_MOVED, *(field.name for part in parts for field in fields(part))}
    beside = sorted(name for name in moved if hasattr(kind, name))
    if beside or not isinstance(kind.about, About):
        raise SettingsError(
            f"{about}, whose class sets {', '.join(beside) or 'about'}, which is ignored.",
            remedy="Set it in `about`, a `fedrec.algorithms.About`, in phases, or as "
            f"`folding_pull`, in {package}.",
        )
    computed = {name for of in (Derived, Sent) for name in vars(of) if not name.startswith("_")}
    computed.add("first_scores")
    own = sorted(name for name in computed - set(dir(Algorithm)) if hasattr(kind, name))
    if own:
        raise SettingsError(
            f"{about}, whose class defines {', '.join(own)}, which fedrec now computes itself.",
            remedy=f"Declare it by parameters and phases in {package}, and remove these names.",
        )
    return kind


ALGORITHMS = Registry(
    {
        "fedmf": "fedrec.algorithms.fedmf:FedMF",
        "fedals": "fedrec.algorithms.fedals:FedALS",
        "ease": "fedrec.algorithms.ease:EASE",
        "sketch": "fedrec.algorithms.sketch:Sketch",
        "pfedrec": "fedrec.algorithms.pfedrec:PFedRec",
        "pfedclr": "fedrec.algorithms.pfedclr:PFedCLR",
        "fedncf": "fedrec.algorithms.fedncf:FedNCF",
        "fedrap": "fedrec.algorithms.fedrap:FedRAP",
        "plgc": "fedrec.algorithms.plgc:PLGC",
        "gpfedrec": "fedrec.algorithms.gpfedrec:GPFedRec",
        "perfedrec": "fedrec.algorithms.perfedrec:PerFedRec",
        "cofedrec": "fedrec.algorithms.cofedrec:CoFedRec",
        "pfedgraph": "fedrec.algorithms.pfedgraph:PFedGraph",
        "fedrecgel": "fedrec.algorithms.fedrecgel:FedRecGEL",
    }
)
