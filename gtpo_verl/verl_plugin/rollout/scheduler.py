"""vLLM's scheduler, keeping the tokens of a response until it is finished.

vLLM's engine sends every token of every request to the server as an object of its own, with its log-probability in
three arrays: the server's one thread spends more time on them than the GPU on the tokens. Where nobody streams (verl
does not), the same tokens can go as one object.

Runs in the engine's process; `scheduler_cls` is vLLM's own setting.
"""

from array import array
from operator import attrgetter
from typing import Any

import numpy as np
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.engine.core import EngineCoreProc
from vllm.v1.outputs import LogprobsLists


def read_whole(sampling_params: dict[str, Any]) -> dict[str, Any]:
    """Parameters for the same tokens without text (unless stop strings are searched in it) and in one output. What the
    caller sets stays."""
    return {
        "output_kind": RequestOutputKind.FINAL_ONLY,
        "detokenize": bool(sampling_params.get("stop")),
        "flat_logprobs": sampling_params.get("prompt_logprobs") is None,  # verl reads those in vLLM's other layout
        **sampling_params,
    }


class Tokens:
    """Tokens of one request that the server does not have yet, with log-probability and rank of each."""

    __slots__ = ("logprobs", "ranks", "token_ids")

    def __init__(self) -> None:
        self.token_ids = array("i")
        self.logprobs = array("f")
        self.ranks = array("i")

    def keep(self, output: EngineCoreOutput) -> None:
        self.token_ids.extend(output.new_token_ids)
        if output.new_logprobs is None:
            return
        _, logprobs, ranks, _ = output.new_logprobs
        if len(ranks) == 1:  # the rule; the sampled token is the first
            self.logprobs.append(logprobs.item(0))
            self.ranks.append(ranks.item(0))
        else:
            self.logprobs.extend(logprobs[:, 0].tolist())
            self.ranks.extend(ranks.tolist())

    def take(self, request_id: str) -> list[EngineCoreOutput]:
        """What was kept as one output that does not finish the request, and forgets it; nothing if nothing was kept."""
        if not self.token_ids:
            return []
        logprobs = None
        if self.logprobs:
            logprobs = LogprobsLists(
                np.array(self.token_ids, dtype=np.int32)[:, None],
                np.array(self.logprobs, dtype=np.float32)[:, None],
                np.array(self.ranks, dtype=np.int32),
            )
        output = EngineCoreOutput(request_id=request_id, new_token_ids=self.token_ids.tolist(), new_logprobs=logprobs)
        self.__init__()  # type: ignore[misc]
        return [output]


class _WholeResponses:
    """Over vLLM's scheduler: outputs of a request are kept while they hold nothing but tokens."""

    log_stats: bool
    requests: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._kept: dict[str, Tokens] = {}
        self._aborted: dict[str, Tokens] = {}
        send_tokens_of_aborted_requests()

    def add_request(self, request: Any) -> None:
        # With statistics on, vLLM measures the time between tokens where they arrive.
        if not self.log_stats and _is_read_whole(request):
            self._kept[request.request_id] = Tokens()
        super().add_request(request)  # type: ignore[misc]

    def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
        by_client = super().update_from_output(*args, **kwargs)  # type: ignore[misc]
        for outputs in by_client.values():
            sent: list[EngineCoreOutput] = []
            for output in outputs.outputs:  # a thousand times a step
                tokens = self._kept.get(output.request_id)
                if tokens is None:
                    sent.append(output)
                elif output.routed_experts is None and _rest(output) == _NOTHING:
                    tokens.keep(output)
                else:
                    sent.extend((*tokens.take(output.request_id), output))
                    if output.finish_reason is not None:
                        del self._kept[output.request_id]
            outputs.outputs = sent
        return by_client

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        finished = super().finish_requests(request_ids, finished_status)  # type: ignore[misc]
        # Until the next call, for the engine to send (below); a client that is gone asks for nothing.
        self._aborted = {name: self._kept.pop(name) for name in list(self._kept) if self._is_over(name)}
        return finished

    def _is_over(self, request_id: str) -> bool:
        request = self.requests.get(request_id)
        return request is None or request.is_finished()

    def take_aborted(self, request_ids: list[str]) -> list[EngineCoreOutput]:
        """What was kept of requests that the last `finish_requests` ended."""
        return [
            output for name in request_ids if name in self._aborted for output in self._aborted.pop(name).take(name)
        ]


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
        and params.prompt_logprobs is None
        and not request.resumable
    )


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
