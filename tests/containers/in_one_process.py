"""The same federation in one process, in a client's container, so that the libraries are the same.

`python in_one_process.py SETTINGS.toml` trains on MovieLens-100K out of the cache and prints a
digest for every tensor of the best and of the latest model, as one JSON object.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256

from fedrec import load_data, load_settings
from fedrec.model.state import SharedState
from fedrec_lab import simulate


def digests(model: SharedState) -> dict[str, str]:
    """Return a digest for every tensor's bits."""
    return {name: sha256(tensor.tobytes()).hexdigest() for name, tensor in model.tensors.items()}


def main() -> None:
    """Run the federation and print what came out."""
    users, catalogue = load_data("ml-100k")
    found = simulate(load_settings(sys.argv[1]), users=users, catalogue=catalogue)
    print(json.dumps({"best": digests(found.best.shared), "latest": digests(found.last.shared)}))


if __name__ == "__main__":
    main()
