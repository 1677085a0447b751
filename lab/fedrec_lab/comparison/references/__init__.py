"""References: one class each, one line each in `REFERENCES`."""

from fedrec_lab.comparison.references.centralised import CentralisedMF, CentralisedNCF, CentRAP
from fedrec_lab.comparison.references.reference import (
    IALS,
    Ease,
    Fitted,
    Reference,
    ScoredReference,
)

__all__ = [
    "IALS",
    "REFERENCES",
    "CentRAP",
    "CentralisedMF",
    "CentralisedNCF",
    "Ease",
    "Fitted",
    "Reference",
    "ScoredReference",
]

REFERENCES: dict[str, type[Reference]] = {
    "centralised-mf": CentralisedMF,
    "centralised-ncf": CentralisedNCF,
    "centrap": CentRAP,
    "ials": IALS,
    "ease": Ease,
}
"""References in the order of their rows, which follow the federation's own."""
