"""What the package exports, and what importing it must not cost."""

import subprocess
import sys

import pytest

import fedrec.data


def test_everything_listed_is_there():
    for name in fedrec.data.__all__:
        assert hasattr(fedrec.data, name)
    assert len(set(fedrec.data.__all__)) == len(fedrec.data.__all__)


@pytest.mark.slow
def test_importing_loads_no_heavy_library():
    program = "import sys, fedrec.data; print({'torch', 'pyarrow', 'pandas'} & set(sys.modules))"
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert finished.stdout.strip() == "set()"
