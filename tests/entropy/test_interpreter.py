"""The Triton kernels on a machine without a GPU: the suites of this folder once more, in Triton's interpreter.

In a process of its own, because Triton decides at import whether it interprets.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # each test is a whole suite in another process

SUITES = ["test_functional.py", "test_linear.py", "test_shards.py"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("suite", SUITES)
def test_the_kernels_pass_the_same_tests(suite):
    pytest.importorskip("triton", reason="Triton is not installed")
    here = Path(__file__).parent
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not gpu and not slow"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, str(here / suite)], cwd=here.parents[1], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) > 10
