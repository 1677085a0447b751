"""The generated protocol code is that of protos/."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_protocol_code_is_what_make_protos_writes(tmp_path):
    generate = runpy.run_path(str(ROOT / "protos" / "generate.py"))["main"]
    assert generate(tmp_path) == 0
    there = ROOT / "common" / "fedrec" / "wire" / "v1"
    made = {path.name: path.read_text() for path in (tmp_path / "fedrec/wire/v1").iterdir()}
    kept = {path.name: path.read_text() for path in there.iterdir() if path.is_file()}
    assert {name for name in made if made[name] != kept.get(name)} == set(), "run `make protos`"
    assert set(kept) == set(made)
