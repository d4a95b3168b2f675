import sys
from pathlib import Path

# What several tests share lies beside them, and the brute-force reference where pytest's importlib mode does not look.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "algorithms")]
