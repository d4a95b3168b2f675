"""Starts a training run as a child process, shows its progress, and leaves nothing of it behind."""

from gtpo_verl.launch.run_info import RunInfo
from gtpo_verl.launch.supervisor import run_training, supervise

__all__ = ["RunInfo", "run_training", "supervise"]
