"""Log-probabilities of the sampled tokens in vLLM's server, many at a time."""

from collections.abc import Iterator
from typing import Any

from vllm.logprobs import FlatLogprobs
from vllm.v1.engine import output_processor
from vllm.v1.engine.logprobs import LogprobsProcessor


class SampledLogprob(float):
    """A position of `SampledLogprobs`: for its one token, `position[token].logprob` as in vLLM's mapping."""

    def __getitem__(self, token_id: int) -> "SampledLogprob":
        return self

    @property
    def logprob(self) -> float:
        return float(self)


class SampledLogprobs(FlatLogprobs):
    """vLLM's flat log-probabilities where each position has its sampled token alone; cheap to go through."""

    def extend_sampled(self, token_ids: list[int], logprobs: list[float], ranks: list[int]) -> None:
        """Appends one position a token: three lists of equal length."""
        first = len(self.logprobs)
        end = first + len(logprobs)
        self.start_indices.extend(range(first, end))
        self.end_indices.extend(range(first + 1, end + 1))
        self.token_ids.extend(token_ids)
        self.logprobs.extend(logprobs)
        self.ranks.extend(ranks)
        self.decoded_tokens.extend([None] * len(logprobs))

    def __iter__(self) -> Iterator[Any]:
        return map(SampledLogprob, self.logprobs)


class SampledLogprobsProcessor(LogprobsProcessor):
    """vLLM's processor, which takes many positions at once where only the sampled tokens are asked for."""

    @classmethod
    def from_new_request(cls, tokenizer: Any, request: Any) -> "SampledLogprobsProcessor":
        made: Any = super().from_new_request(tokenizer, request)
        if made.num_logprobs == 0 and made.tokenizer is None and isinstance(made.logprobs, FlatLogprobs):
            made.logprobs = SampledLogprobs()
        return made

    def _update_sample_logprobs(self, logprobs_lists: Any) -> None:
        if not isinstance(self.logprobs, SampledLogprobs):
            super()._update_sample_logprobs(logprobs_lists)
            return
        token_ids, logprobs, ranks, _ = logprobs_lists
        sampled = logprobs[:, 0].tolist()
        self.logprobs.extend_sampled(token_ids[:, 0].tolist(), sampled, ranks.tolist())
        self.cumulative_logprob = sum(sampled, self.cumulative_logprob or 0.0)


def install() -> None:
    """Patches vllm/v1/engine/output_processor.py in this process: it makes a dictionary with an object a token."""
    output_processor.LogprobsProcessor = SampledLogprobsProcessor  # type: ignore[misc]
