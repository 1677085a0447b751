"""Blocks of commands that pages show, run as a reader would."""

import os
import subprocess
import sys
import sysconfig


def run(body, folder, site, **environment):
    """Run a block as a reader does, but import first from a folder that is thrown away."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", body],
        cwd=folder,
        env=os.environ
        | {
            "PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join([str(site), *sys.path]),
            "PIP_TARGET": str(site),
            "PIP_NO_BUILD_ISOLATION": "0",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            "OMP_NUM_THREADS": "1",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
