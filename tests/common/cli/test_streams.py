"""Commands whose stdout or stderr is closed, full, or without a reader."""

import os
import subprocess
import sys

import pytest

# They start processes.
pytestmark = pytest.mark.slow

FEDREC = f"{sys.executable} -m fedrec"
CLOSED = "error [output]: Standard output is closed. Redirect it, as in >/dev/null.\n"
FULL = "error [output]: Standard output cannot be written: No space left on device.\n"
GONE = (
    "error [data]: gone.csv is not there. Expected a file, or a folder of Parquet files.\n"
    "  Check the path.\n"
)


@pytest.mark.parametrize(
    ("shell", "code", "seen"),
    [
        ("{fedrec} data describe data.csv >&-", 1, CLOSED),
        ("{fedrec} --help >&-", 1, CLOSED),
        ("{fedrec} data describe data.csv >/dev/full", 1, FULL),
        ("{fedrec} data describe data.csv --json >/dev/full", 1, FULL),
        ("{fedrec} data describe gone.csv --json >/dev/full", 2, GONE),
        ("LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 {fedrec} --help >/dev/full", 1, FULL),
        ("set -o pipefail; {fedrec} data describe data.csv | true", 1, ""),
        ("{fedrec} data describe gone.csv 2>&-", 2, ""),
        ("{fedrec} data describe gone.csv 2>/dev/full", 2, ""),
        ("{fedrec} data describe data.csv >/dev/null 2>&-", 0, ""),
        ("{fedrec} data describe data.csv >&- 2>&-", 1, ""),
    ],
)
def test_it_ends_with_one_line_and_a_documented_code(tmp_path, shell, code, seen):
    lines = [f"u{n % 4},i{n}" for n in range(12)]
    (tmp_path / "data.csv").write_text("\n".join(["user,item", *lines, ""]))
    done = subprocess.run(
        ["bash", "-c", shell.format(fedrec=FEDREC)],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr, done.stdout) == (code, seen, "")
    assert [path.name for path in tmp_path.iterdir()] == ["data.csv"]
