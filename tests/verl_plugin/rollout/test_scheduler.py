"""What leaves vLLM's engine: the tokens of a response together, anything else at once."""

from types import SimpleNamespace

import numpy as np
import pytest
import zmq

pytest.importorskip("vllm")
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.metrics.stats import PrefillStats
from vllm.v1.outputs import LogprobsLists

from gtpo_verl.verl_plugin.rollout.scheduler import _WholeResponses, read_whole


class Steps:
    """vLLM's scheduler as far as it matters here: tokens go to their requests, and out as the test says."""

    log_stats = False
    connector = "other engines"  # so that no cache manager is needed

    def __init__(self) -> None:
        self.requests: dict[str, SimpleNamespace] = {}
        self.failing: list[str] = []  # that vLLM ends of itself in the next step

    def add_request(self, request) -> None:
        self.requests[request.request_id] = request

    def update_from_output(self, scheduler_output, model_runner_output):
        """As vLLM's: cuts the step's log-probabilities into those of each request."""
        outputs = scheduler_output.outputs
        for output in outputs:
            self.requests[output.request_id].output_token_ids += output.new_token_ids
            if model_runner_output.logprobs is not None:
                row = model_runner_output.req_id_to_index[output.request_id]
                output.new_logprobs = model_runner_output.logprobs.slice_request(row, len(output.new_token_ids))
            if output.finish_reason is not None:
                del self.requests[output.request_id]
        failed, self.failing = self.failing, []
        if failed:
            self.finish_requests(failed, None)
        outputs += [EngineCoreOutput(name, [], finish_reason=FinishReason.ERROR) for name in failed]
        return {0: EngineCoreOutputs(outputs=outputs)}

    def finish_requests(self, request_ids, finished_status):
        return [self.requests.pop(name) for name in request_ids]


class Scheduler(_WholeResponses, Steps):
    def _without_plain(self, scheduler_output, *_):
        """Reads more of vLLM's state than there is here: test_lockstep.py."""
        return scheduler_output

    def step(self, *outputs: EngineCoreOutput, width: int = 1) -> list[EngineCoreOutput]:
        """One step of the model, which gave the tokens of `outputs`, beside `width - 1` candidates each; the model has
        the requests in another order."""
        batch = outputs[::-1]
        tokens = [token_id for output in batch for token_id in output.new_token_ids]
        ids = np.array([[token_id] + [99] * (width - 1) for token_id in tokens], np.int32)
        ends = np.cumsum([0] + [len(output.new_token_ids) for output in batch]).tolist()
        logprobs = LogprobsLists(
            ids,
            (-ids / 7).astype(np.float32),
            ids[:, 0] + 1,
            None if len(tokens) == len(batch) else ends,
        )
        scheduled = SimpleNamespace(
            outputs=list(outputs), num_scheduled_tokens={output.request_id: 1 for output in outputs}
        )
        made = SimpleNamespace(
            logprobs=logprobs, req_id_to_index={output.request_id: row for row, output in enumerate(batch)}
        )
        return self.update_from_output(scheduled, made)[0].outputs


def request(name: str = "a", **changes) -> SimpleNamespace:
    params = SamplingParams(**read_whole({"logprobs": 0, **changes}))
    return SimpleNamespace(
        request_id=name,
        sampling_params=params,
        pooling_params=None,
        structured_output_request=None,
        has_encoder_inputs=False,
        resumable=False,
        output_token_ids=[],
        is_finished=lambda: False,
    )


def tokens(*token_ids: int, name: str = "a", **others) -> EngineCoreOutput:
    return EngineCoreOutput(request_id=name, new_token_ids=list(token_ids), **others)


def check(output: EngineCoreOutput, *token_ids: int) -> None:
    """It holds these tokens, and what `Scheduler.step` said of them."""
    assert output.new_token_ids == list(token_ids)
    assert output.new_logprobs.logprob_token_ids[:, 0].tolist() == list(token_ids)
    assert output.new_logprobs.logprobs[:, 0].tolist() == [np.float32(-i / 7) for i in token_ids]
    assert output.new_logprobs.sampled_token_ranks.tolist() == [i + 1 for i in token_ids]


def test_tokens_leave_with_the_output_that_finishes() -> None:
    scheduler = Scheduler()
    scheduler.add_request(request())
    assert scheduler.step(tokens(3)) == []
    assert scheduler.step(tokens(500)) == []
    (output,) = scheduler.step(tokens(9, finish_reason=FinishReason.STOP, stop_reason=9))
    check(output, 3, 500, 9)
    assert (output.finish_reason, output.stop_reason) == (FinishReason.STOP, 9)
    assert scheduler._kept == {}


def test_requests_come_and_go() -> None:
    """More at a time than there are rows at first, longer than the rows are, beginning and ending at any step."""
    scheduler = Scheduler()
    expected: dict[str, list[int]] = {}
    random = np.random.default_rng(1)
    for step in range(400):
        if len(expected) < 150:
            name = f"request {step}"
            scheduler.add_request(request(name))
            expected[name] = []
        ending = {name for name in expected if random.random() < (0 if step < 180 else 0.05)}
        made = []
        for name in random.permutation(sorted(expected)).tolist():
            expected[name].append(int(random.integers(1000)))
            made.append(tokens(expected[name][-1], name=name))
            made[-1].finish_reason = FinishReason.LENGTH if name in ending else None
        left = scheduler.step(*made)
        assert {output.request_id for output in left} == ending
        for output in left:
            check(output, *expected.pop(output.request_id))
    assert len(scheduler._logprobs.lengths) == 256


def test_a_neighbour_that_reads_along() -> None:
    scheduler = Scheduler()
    scheduler.add_request(request())
    scheduler.add_request(request("b", logprobs=2))
    for token_id in (3, 4):
        (output,) = scheduler.step(tokens(token_id), tokens(7, name="b"), width=3)
        assert (output.request_id, output.new_logprobs.logprobs.shape) == ("b", (1, 3))
    assert scheduler.step(tokens(5)) == []
    (output,) = scheduler.step(tokens(6, finish_reason=FinishReason.STOP))
    check(output, 3, 4, 5, 6)


def test_several_tokens_of_one_step() -> None:
    """Speculative decoding gives several."""
    scheduler = Scheduler()
    scheduler.add_request(request())
    scheduler.step(tokens(3))
    scheduler.step(tokens(4, 5))
    scheduler.step(tokens(6, 7, 8))
    (output,) = scheduler.step(tokens(9, finish_reason=FinishReason.STOP))
    check(output, 3, 4, 5, 6, 7, 8, 9)


def test_a_request_that_wants_no_logprobs_gets_none() -> None:
    scheduler = Scheduler()
    scheduler.add_request(request(logprobs=None))
    scheduler.add_request(request("b"))
    scheduler.step(tokens(3), tokens(4, name="b"))
    first, second = scheduler.step(
        tokens(5, finish_reason=FinishReason.STOP), tokens(6, name="b", finish_reason=FinishReason.STOP)
    )
    assert (first.new_token_ids, first.new_logprobs) == ([3, 5], None)
    check(second, 4, 6)


def test_an_output_with_more_than_tokens_leaves_at_once_with_what_was_kept() -> None:
    scheduler = Scheduler()
    scheduler.add_request(request())
    scheduler.step(tokens(3))
    experts = np.zeros((2, 2, 2))
    for others in ({"num_nans_in_logits": 1}, {"kv_transfer_params": {"a": 1}}, {"routed_experts": experts}):
        (output,) = scheduler.step(tokens(4, **others))
        check(output, 3, 4)
        assert scheduler.step(tokens(3)) == []
    (output,) = scheduler.step(tokens(9, finish_reason=FinishReason.STOP))
    check(output, 3, 9)


def test_what_was_in_the_cache_of_prompts_is_said_once() -> None:
    scheduler = Scheduler()
    scheduler.add_request(request())
    assert scheduler.step(tokens(3, prefill_stats=PrefillStats(num_cached_tokens=5))) == []
    (output,) = scheduler.step(tokens(4, finish_reason=FinishReason.STOP))
    check(output, 3, 4)
    assert output.prefill_stats.num_cached_tokens == 5


@pytest.mark.parametrize(
    "changes",
    [
        {"stop": ["="]},
        {"detokenize": True},
        {"output_kind": RequestOutputKind.DELTA},
        {"output_kind": RequestOutputKind.CUMULATIVE},
        {"logprobs": 2},
        {"prompt_logprobs": 1},
        {"logprobs": None, "logprob_token_ids": [3, 4]},
    ],
)
def test_who_reads_along_gets_every_token(changes) -> None:
    scheduler = Scheduler()
    scheduler.add_request(request(**changes))
    assert len(scheduler.step(tokens(3))) == 1


def test_statistics_see_every_token() -> None:
    scheduler = Scheduler()
    scheduler.log_stats = True
    scheduler.add_request(request())
    assert len(scheduler.step(tokens(3))) == 1


def test_tokens_of_ended_requests_are_there_for_the_engine_once() -> None:
    scheduler = Scheduler()
    for name in "abc":
        scheduler.add_request(request(name))
        scheduler.step(tokens(3, name=name))
    scheduler.finish_requests(["a", "b"], None)
    (output,) = scheduler.take_aborted(["a"])
    assert (output.request_id, output.new_token_ids) == ("a", [3])
    assert scheduler.take_aborted(["a"]) == []
    scheduler.finish_requests(["c"], None)
    assert scheduler.take_aborted(["b"]) == []
    assert scheduler._kept == {}


def test_requests_that_vllm_ends_within_a_step() -> None:
    """As where a grammar cannot be compiled: others end in the same step, or go on."""
    scheduler = Scheduler()
    for name in "abc":
        scheduler.add_request(request(name))
    scheduler.step(*(tokens(3, name=name) for name in "abc"))
    scheduler.failing = ["b"]
    first, second = scheduler.step(tokens(4, finish_reason=FinishReason.STOP), tokens(5, name="c"))
    check(first, 3, 4)
    assert (second.request_id, second.finish_reason) == ("b", FinishReason.ERROR)
    check(second, 3)
    (output,) = scheduler.step(tokens(6, name="c", finish_reason=FinishReason.STOP))
    check(output, 3, 5, 6)
    assert scheduler._kept == {}


def test_what_is_sent_may_be_written_over_at_once(monkeypatch) -> None:
    """vLLM's engine reuses the memory of a message of which zmq still reads (vLLM 0.24)."""
    monkeypatch.setattr(zmq, "COPY_THRESHOLD", zmq.COPY_THRESHOLD)
    Scheduler()
    with zmq.Context() as context, context.socket(zmq.PULL) as pull, context.socket(zmq.PUSH) as push:
        push.bind("inproc://responses")
        pull.connect("inproc://responses")
        message = bytearray(b"a" * 10**6)
        tracker = push.send(message, copy=False, track=True)
        message[:] = b"b" * 10**6
        assert tracker.done
        assert pull.recv() == b"a" * 10**6


def test_parameters_are_not_copied_and_requests_made_of_the_same_ones_do_not_change_each_other() -> None:
    """vLLM adds ends of its own to what it takes for a copy; verl makes many requests' parameters of one dictionary."""
    shared = {"stop_token_ids": [3], "logprobs": 0, "extra_args": {"for": "all"}}
    first, second = (SamplingParams(**read_whole(shared)) for _ in range(2))
    taken = first.clone()
    assert taken.extra_args is first.extra_args
    taken.update_from_generation_config({"eos_token_id": [5, 6]}, 5)
    assert {3, 6} <= taken.all_stop_token_ids
    assert shared["stop_token_ids"] == [3]
    assert second.stop_token_ids == [3]
    assert second.all_stop_token_ids == {3}
