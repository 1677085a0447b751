"""References: one class each, one line each in `REFERENCES`."""

from fedrec_lab.comparison.references.centralised import CentralisedMF, CentralisedNCF, CentRAP
from fedrec_lab.comparison.references.factors import IALS, LightGCN
from fedrec_lab.comparison.references.item_weights import Ease, Edlae, ItemKNN, RP3Beta
from fedrec_lab.comparison.references.reference import ALL_ROWS, Ceiling, Reference

__all__ = ["ALL_ROWS", "REFERENCES", "Reference"]

REFERENCES: dict[str, type[Reference]] = {
    "ceiling": Ceiling,
    "ease": Ease,
    "edlae": Edlae,
    "item-knn": ItemKNN,
    "rp3beta": RP3Beta,
    "ials": IALS,
    "lightgcn": LightGCN,
    "centralised-mf": CentralisedMF,
    "centralised-ncf": CentralisedNCF,
    "centrap": CentRAP,
}
"""References in the order of their rows, which follow the federation's own."""
