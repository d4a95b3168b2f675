"""How long a property is tried: some dozens of fixed examples in every run of the tests, or minutes of new ones.

``GTPO_VERL_FUZZ_MINUTES=15 pytest -s tests/fuzz/test_reward.py`` gives the properties of a file so many minutes
together, and says how many examples they were tried on. What is found then is mended, and kept as an ``@example`` or a
row.
"""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

MINUTES = float(os.environ.get("GTPO_VERL_FUZZ_MINUTES", 0))
# The same examples in every run of the suite: a change is judged by what it changes, not by luck.
SHORT = settings(
    derandomize=MINUTES == 0, database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
_ROUND = 100
_shares: Counter[str] = Counter()


def tried(examples: int, share: int = 1) -> Callable[[Any], Any]:
    """Decorates a property (a test under ``@given``).

    Args:
        examples: how many it is tried on in every run.
        share: of the minutes, beside the shares of the file's other properties.
    """

    def decorate(test: Any) -> Any:
        _shares[test.__module__] += share
        inner, count = test.hypothesis.inner_test, Counter[str]()

        @functools.wraps(inner)
        def counting(*args: Any, **kwargs: Any) -> None:
            count["examples"] += 1
            inner(*args, **kwargs)

        test.hypothesis.inner_test = counting
        bounded = settings(SHORT, max_examples=_ROUND if MINUTES else examples)(test)

        @functools.wraps(bounded)
        def run(*args: Any, **kwargs: Any) -> None:
            began = time.monotonic()
            end = began + 60 * MINUTES * share / _shares[test.__module__]
            try:
                bounded(*args, **kwargs)
                while time.monotonic() < end:
                    bounded(*args, **kwargs)
            finally:
                if MINUTES:
                    minutes = (time.monotonic() - began) / 60
                    print(f"\n{test.__name__}: {count['examples']} examples in {minutes:.1f} minutes", flush=True)

        return run

    return decorate
