"""Starts a training run as a child process, shows its progress, and leaves nothing of it behind."""

from gtpo_verl.launch.supervisor import run_training, supervise
from gtpo_verl.runtime.run_info import RunInfo

__all__ = ["RunInfo", "run_training", "supervise"]
