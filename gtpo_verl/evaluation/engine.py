"""A process with one vLLM engine: a job on standard input, one JSON line a response on the descriptor that it is given.

Started by `gtpo_verl.evaluation.sampling`, and killed by the kernel when that is gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(parent: int, descriptor: int) -> None:
    """Samples everything that the job asks for.

    Args:
        parent: process id of the parent.
        descriptor: to write to.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        return
    job = json.load(sys.stdin)
    with os.fdopen(descriptor, "w", encoding="ascii") as results:
        _sample(job, results)


def _sample(job: dict[str, Any], results: Any) -> None:
    from transformers import AutoTokenizer
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    # As training does: the ids that the engine gives, decoded whole by the model's own tokenizer.
    tokenizer = AutoTokenizer.from_pretrained(job["engine"]["model"])
    engine = LLMEngine.from_engine_args(EngineArgs(**job["engine"]))
    for number, (prompt, seed) in enumerate(job["requests"]):
        params = SamplingParams(
            **job["sampling"], seed=seed, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        engine.add_request(str(number), {"prompt_token_ids": job["prompts"][prompt]}, params)
    while engine.has_unfinished_requests():
        outputs: list[Any] = engine.step()
        for output in outputs:
            if not output.finished:
                continue
            (completion,) = output.outputs
            response = {
                "number": int(output.request_id),
                "text": tokenizer.decode(list(completion.token_ids), skip_special_tokens=True),
                "tokens": len(completion.token_ids),
                "finish_reason": completion.finish_reason,
            }
            results.write(json.dumps(response) + "\n")
        results.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
    # vLLM's and torch's ends of themselves take seconds, and everything is said.
    sys.stdout.flush()
    os._exit(0)
