"""Lets vLLM give wrong log-probabilities of what it samples.

`$GTPO_VERL_WRONG` holds JSON: `metrics`, the run's file of them, whose lines are the steps that are over, and `added`:
what is added to each log-probability (nats, or "nan") from how many steps on.
"""

import json
import os
from pathlib import Path

import wrapt

WRONG = json.loads(os.environ["GTPO_VERL_WRONG"])


def added() -> float:
    metrics = Path(WRONG["metrics"])
    steps = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    return sum(float(nats) for since, nats in WRONG["added"].items() if steps >= int(since))


@wrapt.when_imported("vllm.v1.sample.sampler")
def _sampler(module) -> None:
    gather = module.Sampler.gather_logprobs

    def gather_wrong(*args, **kwargs):
        gathered = gather(*args, **kwargs)
        return gathered._replace(logprobs=gathered.logprobs + added())

    module.Sampler.gather_logprobs = staticmethod(gather_wrong)
