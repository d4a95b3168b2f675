"""What leaves vLLM's engine: the tokens of a response together, anything else at once."""

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("vllm")
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.outputs import LogprobsLists

from gtpo_verl.verl_plugin.rollout.scheduler import _WholeResponses, read_whole


class Steps:
    """vLLM's scheduler as far as it matters here: gives out what the test says."""

    log_stats = False

    def __init__(self) -> None:
        self.requests: dict[str, SimpleNamespace] = {}

    def add_request(self, request) -> None:
        self.requests[request.request_id] = request

    def update_from_output(self, outputs):
        return {0: EngineCoreOutputs(outputs=outputs)}

    def finish_requests(self, request_ids, finished_status):
        return [self.requests.pop(name) for name in request_ids]


class Scheduler(_WholeResponses, Steps):
    def step(self, *outputs: EngineCoreOutput) -> list[EngineCoreOutput]:
        return self.update_from_output(list(outputs))[0].outputs


def request(name: str = "a", **changes) -> SimpleNamespace:
    params = SamplingParams(**read_whole({"logprobs": 0, **changes}))
    return SimpleNamespace(request_id=name, sampling_params=params, resumable=False, is_finished=lambda: False)


def token(token_id: int, name: str = "a", **others) -> EngineCoreOutput:
    logprobs = LogprobsLists(
        np.array([[token_id]], np.int32), np.array([[-token_id / 7]], np.float32), np.array([token_id + 1], np.int32)
    )
    return EngineCoreOutput(request_id=name, new_token_ids=[token_id], new_logprobs=logprobs, **others)


def test_tokens_leave_together_before_the_output_that_finishes() -> None:
    scheduler = Scheduler()
    scheduler.add_request(request())
    assert scheduler.step(token(3)) == []
    assert scheduler.step(token(500)) == []
    kept, last = scheduler.step(token(9, finish_reason=FinishReason.STOP, stop_reason=9))
    assert (kept.new_token_ids, kept.finish_reason) == ([3, 500], None)
    assert kept.new_logprobs.logprob_token_ids.tolist() == [[3], [500]]
    assert kept.new_logprobs.logprobs[:, 0].tolist() == np.float32([-3 / 7, -500 / 7]).tolist()
    assert kept.new_logprobs.sampled_token_ranks.tolist() == [4, 501]
    assert last == token(9, finish_reason=FinishReason.STOP, stop_reason=9) or last.new_token_ids == [9]
    assert scheduler._kept == {}


def test_several_tokens_of_one_step_among_other_candidates() -> None:
    """Speculative decoding gives several; a neighbour in the batch that asks for more makes the arrays wider."""
    scheduler = Scheduler()
    scheduler.add_request(request())
    for tokens in ([3], [4, 5]):
        ids = np.array([[token_id, 99] for token_id in tokens], np.int32)
        logprobs = LogprobsLists(ids, (-ids / 7).astype(np.float32), ids[:, 0] + 1)
        scheduler.step(EngineCoreOutput(request_id="a", new_token_ids=tokens, new_logprobs=logprobs))
    kept, _ = scheduler.step(token(9, finish_reason=FinishReason.STOP))
    assert kept.new_token_ids == [3, 4, 5]
    assert kept.new_logprobs.logprobs.tolist() == [[np.float32(-i / 7)] for i in (3, 4, 5)]
    assert kept.new_logprobs.sampled_token_ranks.tolist() == [4, 5, 6]


def test_an_output_with_more_than_tokens_leaves_at_once_and_in_order() -> None:
    scheduler = Scheduler()
    scheduler.add_request(request())
    scheduler.step(token(3))
    experts = np.zeros((2, 2, 2))
    for others in ({"num_nans_in_logits": 1}, {"kv_transfer_params": {"a": 1}}, {"routed_experts": experts}):
        kept, output = scheduler.step(token(4, **others))
        assert (kept.new_token_ids, output.new_token_ids) == ([3], [4])
        assert scheduler.step(token(3)) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"stop": ["="]},
        {"detokenize": True},
        {"output_kind": RequestOutputKind.DELTA},
        {"output_kind": RequestOutputKind.CUMULATIVE},
        {"logprobs": 2},
        {"prompt_logprobs": 1},
    ],
)
def test_who_reads_along_gets_every_token(changes) -> None:
    scheduler = Scheduler()
    scheduler.add_request(request(**changes))
    assert len(scheduler.step(token(3))) == 1


def test_statistics_see_every_token() -> None:
    scheduler = Scheduler()
    scheduler.log_stats = True
    scheduler.add_request(request())
    assert len(scheduler.step(token(3))) == 1


def test_tokens_of_ended_requests_are_there_for_the_engine_once() -> None:
    scheduler = Scheduler()
    for name in "abc":
        scheduler.add_request(request(name))
        scheduler.step(token(3, name))
    scheduler.finish_requests(["a", "b"], None)
    (output,) = scheduler.take_aborted(["a"])
    assert (output.request_id, output.new_token_ids) == ("a", [3])
    assert scheduler.take_aborted(["a"]) == []
    scheduler.finish_requests(["c"], None)
    assert scheduler.take_aborted(["b"]) == []
    assert scheduler._kept == {}
