"""Python imports this at its start where the folder is on PYTHONPATH: what tests do inside the processes of a run."""

import os

if "GTPO_VERL_KEYS" in os.environ:
    import key_recorder  # noqa: F401
if "GTPO_VERL_TURNS" in os.environ:
    import turns  # noqa: F401
if "GTPO_VERL_FAULT" in os.environ:
    import fault  # noqa: F401
if "GTPO_VERL_WRONG" in os.environ:
    import wrong_log_probs  # noqa: F401
