"""Makes a whole set of runs from a manifest: `python -m benchmarks.reproduction SCALE`, or scripts/reproduce.sh."""
