"""Token log-probabilities and entropies that are exact near certainty and cost one pass over the logits.

Stands on its own: PyTorch, and Triton where there is a GPU. Two pairs share one arithmetic each, so that the
log-probabilities of the log-prob pass and of the update are the same numbers while the policy is unchanged:

- :func:`logprob_entropy` (log-prob pass) with :func:`logprob` (update), from logits;
- :func:`linear_logprob_entropy` with :func:`linear_logprob`, from hidden states and the weight of the LM head.

:func:`logprob_entropy_partial` with :func:`combine`, and :func:`sharded_logprob_entropy` over a process group, do the
former for a vocabulary split over ranks.
"""

from gtpo_verl.entropy.functional import logprob, logprob_entropy
from gtpo_verl.entropy.linear import linear_logprob, linear_logprob_entropy
from gtpo_verl.entropy.shards import Partial, combine, logprob_entropy_partial, sharded_logprob_entropy

__all__ = [
    "Partial",
    "combine",
    "linear_logprob",
    "linear_logprob_entropy",
    "logprob",
    "logprob_entropy",
    "logprob_entropy_partial",
    "sharded_logprob_entropy",
]
