"""RecBole's and LensKit's own metrics of the lists on stdin, as JSON: run by test_lists.py.

The folder that is the argument has both libraries without torch's, pandas' and their other large
dependencies, which are ours. Only what RecBole needs for other things is left out.
"""

import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch

FOLDER = Path(sys.argv[1])
sys.path.insert(0, str(FOLDER))


def left_out(name, **values):
    """Put a module of these names in the place of one that imports too much."""
    module = types.ModuleType(name)
    vars(module).update(values)
    sys.modules[name] = module
    return module


def recbole(scores, lists, test, ats):
    np.float = float  # RecBole still uses the name that numpy had for it.
    # Of recbole.utils the metrics use an enumeration. scikit-learn is for other metrics.
    spec = importlib.util.spec_from_file_location("kinds", FOLDER / "recbole/utils/enum_type.py")
    kinds = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kinds)
    left_out("recbole.utils", EvaluatorType=kinds.EvaluatorType)
    unused = dict.fromkeys(("auc", "mean_absolute_error", "mean_squared_error"))
    left_out("sklearn", metrics=left_out("sklearn.metrics", **unused))
    from recbole.evaluator import metrics

    hits = np.array([np.isin(row, items) for row, items in zip(lists, test, strict=True)])
    sizes = np.array([len(items) for items in test])
    ranks = np.argsort(np.argsort(-scores, axis=1), axis=1) + 1
    of_test = [row[items].sum() for row, items in zip(ranks, test, strict=True)]
    data = {
        "rec.topk": torch.tensor(np.column_stack((hits, sizes))),
        "rec.items": torch.tensor(lists),
        "data.num_items": scores.shape[1],
        "rec.meanrank": torch.tensor(
            np.column_stack((of_test, np.full(len(test), scores.shape[1]), sizes)).astype(float)
        ),
    }
    settings = {"metric_decimal_place": 10, "topk": ats}
    kinds = {
        "hr": metrics.Hit,
        "precision": metrics.Precision,
        "recall": metrics.Recall,
        "map": metrics.MAP,
        "mrr": metrics.MRR,
        "ndcg": metrics.NDCG,
        "coverage": metrics.ItemCoverage,
        "gini": metrics.GiniIndex,
    }
    found = {
        name: list(kind(settings).calculate_metric(data).values()) for name, kind in kinds.items()
    }
    gauc = metrics.GAUC(settings).calculate_metric(data)["gauc"]
    return [{name: float(row[k]) for name, row in found.items()} for k in range(len(ats))], float(
        gauc
    )


def lenskit(scores, lists, test, ats):
    from lenskit.data import ItemList
    from lenskit.metrics import ranking

    ours = [ItemList(row, ordered=True) for row in lists]
    theirs = [ItemList(items) for items in test]
    discount = ranking.LogRankWeight(offset=1)

    def at(k):
        kinds = {
            "precision": ranking.Precision(k),
            "hr": ranking.Hit(k),
            "map": ranking.AveragePrecision(k),
            "mrr": ranking.RecipRank(k),
            "ndcg": ranking.NDCG(k, weight=discount),
            "recall": ranking.Recall(k),
        }
        found = {
            name: float(
                np.mean([kind.measure_list(*pair) for pair in zip(ours, theirs, strict=True)])
            )
            for name, kind in kinds.items()
        }
        gini = ranking.ListGini(k, items=scores.shape[1])
        parts = [
            gini.compute_list_data(row, items) for row, items in zip(ours, theirs, strict=True)
        ]
        return found | {"gini": float(gini.global_aggregate(parts))}

    return [at(k) for k in ats]


given = json.load(sys.stdin)
arguments = (np.array(given["scores"]), np.array(given["lists"]), given["test"], given["ats"])
rows, gauc = recbole(*arguments)
print(json.dumps({"recbole": rows, "gauc": gauc, "lenskit": lenskit(*arguments)}))
