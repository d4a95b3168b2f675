"""Hydra configuration (data only). A package, because Hydra's `pkg://` source reads nothing else."""
