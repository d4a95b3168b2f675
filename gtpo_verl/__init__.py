"""Entropy-weighted credit (GTPO, GRPO-S; arXiv 2508.04349) for verl."""

__version__ = "0.1.0"
