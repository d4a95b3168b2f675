import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

# `brute_force` and `batches` lie beside the tests, which pytest's importlib mode does not put on the path.
sys.path.insert(0, str(Path(__file__).parent))

settings.register_profile("gtpo", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gtpo")
