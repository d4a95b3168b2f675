"""vLLM's scheduler, keeping the tokens of a response until it is finished.

vLLM's engine sends every token of every request to the server as an object of its own, with its log-probability in
three arrays: the server's one thread spends more time on them than the GPU on the tokens. Where nobody streams (verl
does not), the same tokens can go as one object: they lie in vLLM's request until it is finished, their
log-probabilities here, written for all requests of a step at once.

Runs in the engine's process; `scheduler_cls` is vLLM's own setting.
"""

from copy import copy
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import vllm
import zmq
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.outputs import LogprobsLists
from vllm.v1.request import Request, RequestStatus

from gtpo_verl.verl_plugin.rollout import slots

# Releases whose way with a new token is the one in `_without_plain`.
_KNOWN = vllm.__version__.startswith(("0.24.", "0.27."))
_OF_REQUESTS = Request.__init__.__code__.co_names
_COUNTS_IN_FLIGHT = "num_in_flight_tokens" in _OF_REQUESTS
# How many tokens under way are not to be counted, as the request was preempted since; by its name in either release.
_STALE = "num_stale_output_tokens" if "num_stale_output_tokens" in _OF_REQUESTS else "async_tokens_to_discard"
_EVERYTHING = 2**31 - 1  # bytes; what pyzmq's threshold takes at most


def read_whole(sampling_params: dict[str, Any]) -> dict[str, Any]:
    """Parameters for the same tokens without text (unless stop strings are searched in it) and in one output. What the
    caller sets stays."""
    return {
        "output_kind": RequestOutputKind.FINAL_ONLY,
        "detokenize": bool(sampling_params.get("stop")),
        "flat_logprobs": sampling_params.get("prompt_logprobs") is None,  # verl reads those in vLLM's other layout
        "skip_clone": True,  # verl makes parameters for one request and keeps nothing of them
        **sampling_params,
    }


@dataclass
class Kept:
    """A request whose tokens stay here."""

    request: Any  # vLLM's, which has the tokens
    sent: int = 0  # how many of them the server has
    row: int = -1  # of `SampledLogprobs`
    ends: frozenset[int] | None = frozenset()  # tokens that end it; None: vLLM looks for more than tokens and lengths
    prefill: Any = None  # what vLLM says with the first token: how much of the prompt was in the cache


class SampledLogprobs:
    """Log-probability and rank of the sampled tokens that the server does not have yet, a row a request."""

    def __init__(self) -> None:
        self.logprobs: np.ndarray = np.empty((0, 128), np.float32)
        self.ranks: np.ndarray = np.empty((0, 128), np.int32)
        self.lengths: np.ndarray = np.empty(0, np.int64)
        self._free: list[int] = []

    def append(self, requests: list[Kept], logprobs: np.ndarray, ranks: np.ndarray) -> None:
        """One token of each of these requests, no request twice.

        Args:
            logprobs: (requests,) float32, nats.
            ranks: (requests,) int32, 1 for the most probable token.
        """
        for kept in requests:
            if kept.row < 0:
                kept.row = self._take_row()
        rows = np.array([kept.row for kept in requests], np.int64)
        columns = self.lengths[rows]
        if len(columns) and columns.max() >= self.logprobs.shape[1]:
            self.logprobs, self.ranks = (np.pad(a, ((0, 0), (0, a.shape[1]))) for a in (self.logprobs, self.ranks))
        self.logprobs[rows, columns] = logprobs
        self.ranks[rows, columns] = ranks
        self.lengths[rows] = columns + 1

    def take(self, kept: Kept) -> tuple[np.ndarray, np.ndarray]:
        """All of a request, (tokens,) float32 and int32, whose row is free afterwards."""
        if kept.row < 0:
            return np.empty(0, np.float32), np.empty(0, np.int32)
        length = self.lengths[kept.row]
        taken = self.logprobs[kept.row, :length].copy(), self.ranks[kept.row, :length].copy()
        self._free.append(kept.row)
        kept.row = -1
        return taken

    def _take_row(self) -> int:
        if not self._free:
            rows = len(self.lengths)
            more = max(rows, 64)
            self.logprobs, self.ranks = (np.pad(a, ((0, more), (0, 0))) for a in (self.logprobs, self.ranks))
            self.lengths = np.pad(self.lengths, (0, more))
            self._free = list(range(rows + more - 1, rows - 1, -1))
        row = self._free.pop()
        self.lengths[row] = 0
        return row


class _WholeResponses:
    """Over vLLM's scheduler: outputs of a request are kept while they hold nothing but tokens."""

    log_stats: bool
    requests: dict[str, Any]
    kv_cache_manager: Any
    connector: Any
    max_model_len: int

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._kept: dict[str, Kept] = {}
        self._logprobs = SampledLogprobs()
        self._aborted: dict[str, EngineCoreOutput] = {}
        self._in_step = False
        send_tokens_of_aborted_requests()
        copy_what_is_sent()
        if self.connector is None:  # else other engines have a say in what is cached
            slots.install(self.kv_cache_manager)

    def add_request(self, request: Any) -> None:
        # With statistics on, vLLM measures the time between tokens where they arrive.
        if not self.log_stats and _is_read_whole(request):
            self._kept[request.request_id] = Kept(request, ends=_ends(request))
        super().add_request(request)  # type: ignore[misc]

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        step: LogprobsLists | None = model_runner_output.logprobs
        rows = model_runner_output.req_id_to_index
        together = (
            step is not None
            and step.cu_num_generated_tokens is None
            and scheduler_output.num_scheduled_tokens.keys() <= self._kept.keys()
        )
        if together:
            model_runner_output.logprobs = None  # which vLLM would cut into arrays of one token
            scheduler_output = self._without_plain(scheduler_output, model_runner_output, step)
        self._in_step = True
        try:
            by_client = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        finally:
            self._in_step = False
        for outputs in by_client.values():  # of a thousand requests a step
            found = outputs.outputs
            kept = [self._kept.get(output.request_id) for output in found]
            if together and step is not None:
                new = [n for n, output in enumerate(found) if output.new_token_ids]
                index = [rows[found[n].request_id] for n in new]
                # All are kept, as all that were scheduled are.
                self._logprobs.append(
                    [kept[n] for n in new],  # type: ignore[misc]
                    step.logprobs[index, 0],
                    step.sampled_token_ranks[index],
                )
            outputs.outputs = [
                output
                for output, one, rest in zip(found, kept, map(_rest, found), strict=True)
                if one is None
                or (
                    (rest != _NOTHING or output.routed_experts is not None or not together)
                    and self._leaves(output, one)
                )
            ]
        return by_client

    def _without_plain(self, scheduler_output: Any, model_runner_output: Any, step: Any) -> Any:
        """Takes the new token of every request that it neither begins nor ends, of which vLLM would make an output that
        is thrown away. All that vLLM does with such a token is in here (`Scheduler.update_from_output`,
        `AsyncScheduler._update_request_with_output`, `Request.append_output_token_ids`).

        Returns:
            The step with the other requests alone.
        """
        made = model_runner_output
        if (
            scheduler_output.scheduled_spec_decode_tokens
            or made.routed_experts is not None
            or made.kv_connector_output is not None
            or made.pooler_output
            or made.prompt_logprobs_dict
            or made.num_nans_in_logits  # vLLM's older model runner says an empty dictionary
            or not made.sampled_token_ids
            or not _KNOWN
        ):
            return scheduler_output
        others, plain, index = {}, [], []
        tokens, rows, longest = made.sampled_token_ids, made.req_id_to_index, self.max_model_len - 1
        waiting, cache = isinstance(self, AsyncScheduler), self.kv_cache_manager.cache_blocks
        block = self.kv_cache_manager.block_pool.hash_block_size
        for name, count in scheduler_output.num_scheduled_tokens.items():
            kept = self._kept[name]
            request = kept.request
            row = rows[name]
            new, written, known = tokens[row], request._output_token_ids, request._all_token_ids
            if (
                count != 1
                or len(new) != 1
                or kept.ends is None
                or new[0] in kept.ends
                or not 0 < len(written) < request.max_tokens - 1
                or len(known) >= longest
                or request.status is not RequestStatus.RUNNING
                or getattr(request, _STALE)
            ):
                others[name] = count
                continue
            if _COUNTS_IN_FLIGHT:
                request.num_in_flight_tokens -= 1
            written.append(new[0])
            known.append(new[0])
            if len(known) % block == 0:  # vLLM asks at every token whether a block has become full
                request.update_block_hashes()
            if waiting:
                request.num_output_placeholders -= 1
                cache(request, request.num_computed_tokens - request.num_output_placeholders)
            plain.append(kept)
            index.append(row)
        self._logprobs.append(plain, step.logprobs[index, 0], step.sampled_token_ranks[index])
        rest = copy(scheduler_output)
        rest.num_scheduled_tokens = others
        return rest

    def _leaves(self, output: EngineCoreOutput, kept: Kept) -> bool:
        """Whether an output must go to the server, with all tokens that the server does not have."""
        if output.new_logprobs is not None:
            _, logprobs, ranks, _ = output.new_logprobs
            for logprob, rank in zip(logprobs[:, 0], ranks, strict=True):
                self._logprobs.append([kept], logprob, rank)
        if output.prefill_stats is not None:
            kept.prefill = output.prefill_stats
            output.prefill_stats = None
        if output.routed_experts is None and _rest(output) == _NOTHING:
            return False
        self._fill(output, kept)
        if output.finish_reason is not None:
            del self._kept[output.request_id]
        return True

    def _fill(self, output: EngineCoreOutput, kept: Kept) -> None:
        tokens = list(kept.request.output_token_ids[kept.sent :])
        logprobs, ranks = self._logprobs.take(kept)
        output.new_token_ids = tokens
        output.new_logprobs = None
        if kept.request.sampling_params.logprobs is not None and tokens:
            ids = np.array(tokens, dtype=np.int32)
            output.new_logprobs = LogprobsLists(ids[:, None], logprobs[:, None], ranks)
        output.prefill_stats, kept.prefill = kept.prefill, None
        kept.sent += len(tokens)

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        finished = super().finish_requests(request_ids, finished_status)  # type: ignore[misc]
        if self._in_step:  # vLLM's own call, as for a grammar that does not compile: the step's outputs say so
            return finished
        # Until the next call, for the engine to send (below); a client that is gone asks for nothing.
        self._aborted = {}
        for name in [name for name in self._kept if self._is_over(name)]:
            self._aborted[name] = EngineCoreOutput(request_id=name, new_token_ids=[])
            self._fill(self._aborted[name], self._kept.pop(name))
        return finished

    def _is_over(self, request_id: str) -> bool:
        request = self.requests.get(request_id)
        return request is None or request.is_finished()

    def take_aborted(self, request_ids: list[str]) -> list[EngineCoreOutput]:
        """The tokens of requests that the last `finish_requests` ended, an output each that does not finish it;
        nothing of those without tokens."""
        outputs = [self._aborted.pop(name) for name in request_ids if name in self._aborted]
        return [output for output in outputs if output.new_token_ids]


class WholeResponseScheduler(_WholeResponses, Scheduler):  # type: ignore[misc]
    """vLLM's synchronous scheduler."""


class WholeResponseAsyncScheduler(_WholeResponses, AsyncScheduler):  # type: ignore[misc]
    """vLLM's asynchronous scheduler, its default on GPUs."""


def scheduler(vllm_config: Any, **kwargs: Any) -> Scheduler:
    """For `scheduler_cls`: the variant of the scheduler that vLLM would have taken."""
    chosen = WholeResponseAsyncScheduler if vllm_config.scheduler_config.async_scheduling else WholeResponseScheduler
    return chosen(vllm_config=vllm_config, **kwargs)


def _is_read_whole(request: Any) -> bool:
    """Nobody waits for single tokens, not even vLLM's search for stop strings, which needs text."""
    params = request.sampling_params
    return (
        params is not None
        and params.output_kind is RequestOutputKind.FINAL_ONLY
        and not params.detokenize
        and params.logprobs in (None, 0)
        and not getattr(params, "logprob_token_ids", None)  # of newer releases
        and params.prompt_logprobs is None
        and not request.resumable
    )


def _ends(request: Any) -> frozenset[int] | None:
    params = request.sampling_params
    more = request.pooling_params, request.structured_output_request, getattr(params, "repetition_detection", None)
    if any(one is not None for one in more) or request.has_encoder_inputs:
        return None
    ends = {params.eos_token_id, *(params.stop_token_ids or ())}
    return frozenset(ends - {None})


# What an output can hold beside tokens and their log-probabilities; experts are an array and not compared.
_rest = attrgetter(
    *(
        name
        for name in EngineCoreOutput.__struct_fields__
        if name not in ("request_id", "new_token_ids", "new_logprobs", "routed_experts")
    )
)
_NOTHING = _rest(EngineCoreOutput(request_id="", new_token_ids=[]))


def send_tokens_of_aborted_requests() -> None:
    """Patches vllm/v1/engine/core.py (`EngineCoreProc._send_abort_outputs_to_client`), in this process, once: a request
    that `pause_generation` aborts ends with an output without tokens; those kept here go before it."""
    send = EngineCoreProc._send_abort_outputs_to_client
    if hasattr(send, "__wrapped__"):
        return

    def with_tokens(self: Any, req_ids: list[str], client_index: int) -> None:
        kept = self.scheduler.take_aborted(req_ids)
        if kept:
            self.output_queue.put_nowait((client_index, EngineCoreOutputs(outputs=kept)))
        send(self, req_ids, client_index)

    with_tokens.__wrapped__ = send  # type: ignore[attr-defined]
    EngineCoreProc._send_abort_outputs_to_client = with_tokens


def copy_what_is_sent() -> None:
    """For sockets that this process opens from now on: pyzmq copies every message before it is sent.

    vLLM sends without a copy and writes its next message into the same memory once pyzmq says that the last frame of
    the message is on its way (vllm/v1/engine/core.py, `process_output_sockets`). The last frame is small, so that is at
    once, while the first frame may still be read. vLLM's first frame is small too and copied in any case; with whole
    responses in it, the server has read half of one message and half of the next. vLLM 0.27 no longer does so.
    """
    zmq.COPY_THRESHOLD = _EVERYTHING
