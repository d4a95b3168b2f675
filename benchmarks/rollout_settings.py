"""What each setting of the rollouts gives, in vLLM's asynchronous engine alone: no Ray, no trainer.

    python benchmarks/rollout_settings.py --model MODEL_FOLDER --csv out.csv

Many requests at once, each of exactly `--tokens` tokens with their log-probabilities, as verl's server asks for
them: first as verl has it, then setting after setting as `gtpo_verl.verl_plugin.rollout` has it, each on top of those
before but for the two without log-probabilities and the one with the worker in the engine's process, on which nothing
stands. Seconds are those from the first request to the last response; processor seconds are those of the server's own
process, which is what waits in a training step, and of its children, the engine and its worker; `start` is seconds that
the engine took to start. Engines that differ take turns, one at a time. `--spread` has requests arrive one after the
other, so that steps read prompts and decode at once; without it the last way differs in nothing, nor where vLLM's
attention does not allow such graphs, which its log says.
"""

import argparse
import asyncio
import csv
import datetime
import random
import statistics
import time
from typing import Any

import psutil
import torch

SCHEDULER = "gtpo_verl.verl_plugin.rollout.scheduler.scheduler"
GRAPHS = [1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 640, 768, 896, 1024]
# Name; arguments of the engine; whether responses are read whole (and then whether without text).
WAYS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("as verl", {}, {}),
    ("as verl, without log-probabilities", {}, {"logprobs": None}),
    ("FINAL_ONLY", {}, {"output_kind": "FINAL_ONLY"}),
    ("and no text", {}, {"output_kind": "FINAL_ONLY", "detokenize": False}),
    ("and graphs up to 1,024", {"graphs": True}, {"output_kind": "FINAL_ONLY", "detokenize": False}),
    ("and kept in the scheduler", {"graphs": True, "whole": True}, {"whole": True}),
    ("that without log-probabilities", {"graphs": True, "whole": True}, {"whole": True, "logprobs": None}),
    ("and nothing compiled", {"graphs": True, "whole": True, "compiled": False}, {"whole": True}),
    (
        "and the worker in the engine's process",
        {"graphs": True, "whole": True, "compiled": False, "uni": True},
        {"whole": True},
    ),
    (
        "and graphs of steps that read prompts too",
        {"graphs": True, "whole": True, "compiled": False, "mixed": True},
        {"whole": True},
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=[160, 2048])
    parser.add_argument("--requests", type=int, nargs="+", default=[1024, 256], help="for each number of tokens")
    parser.add_argument("--repeats", type=int, default=3, help="of requests shorter than 1,000 tokens; others: one")
    parser.add_argument("--memory", type=float, default=0.5, help="gpu_memory_utilization")
    parser.add_argument("--no-compile", action="store_true", help="no engine compiles, so that all start sooner")
    parser.add_argument("--spread", type=float, default=0.0, help="seconds over which the requests arrive")
    parser.add_argument("--ways", type=int, nargs="+", default=range(len(WAYS)), help="by number, from 0")
    options = parser.parse_args()
    asyncio.run(measure(options))


async def measure(options: argparse.Namespace) -> None:
    engine, arguments, started = None, None, 0.0
    with open(options.csv, "w", newline="", encoding="utf-8") as file:
        card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
        columns = [
            "way",
            "requests",
            "tokens",
            "seconds",
            "fastest",
            "slowest",
            "server_cpu_seconds",
            "engine_cpu_seconds",
            "repeats",
            "start",
            "spread",
        ]
        table = csv.DictWriter(file, [*columns, "card", "date"])
        table.writeheader()
        for way, wanted, sampling in [WAYS[number] for number in options.ways]:
            if engine is None or wanted != arguments:
                if engine is not None:
                    engine.shutdown()
                began = time.perf_counter()
                engine, arguments = start(options, wanted), wanted
                started = time.perf_counter() - began
                await rollout(engine, options.requests[0], 32, sampling, options.spread)
            for requests, tokens in zip(options.requests, options.tokens, strict=True):
                times = [
                    await rollout(engine, requests, tokens, sampling, options.spread)
                    for _ in range(options.repeats if tokens < 1000 else 1)
                ]
                seconds = [wall for wall, _, _ in times]
                row = {
                    "way": way,
                    "requests": requests,
                    "tokens": tokens,
                    "seconds": round(statistics.median(seconds), 3),
                    "fastest": round(min(seconds), 3),
                    "slowest": round(max(seconds), 3),
                    "server_cpu_seconds": round(statistics.median([own for _, own, _ in times]), 3),
                    "engine_cpu_seconds": round(statistics.median([engines for _, _, engines in times]), 3),
                    "repeats": len(times),
                    "start": round(started, 1),
                    "spread": options.spread,
                    "card": card,
                    "date": datetime.date.today().isoformat(),
                }
                print("  ".join(str(value) for value in row.values()), flush=True)
                table.writerow(row)
                file.flush()
    if engine is not None:
        engine.shutdown()


def start(options: argparse.Namespace, wanted: dict[str, Any]) -> Any:
    """vLLM's engine in a process of its own, and its worker in another, as verl starts it, but for `uni`."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from gtpo_verl.verl_plugin.rollout import logprobs

    more: dict[str, Any] = {}
    if wanted.get("whole"):
        logprobs.install()
        more["scheduler_cls"] = SCHEDULER
    if not torch.cuda.is_available():
        more |= {"enforce_eager": True, "dtype": "float32"}
    else:
        graphs = [*GRAPHS, 1536, 2048] if wanted.get("mixed") else GRAPHS  # decoding steps have 1,024 tokens at most
        more["compilation_config"] = {"cudagraph_capture_sizes": graphs} if wanted.get("graphs") else {}
        if options.no_compile or not wanted.get("compiled", True):
            mode = "FULL" if wanted.get("mixed") else "FULL_DECODE_ONLY"
            more["compilation_config"] |= {"mode": 0, "cudagraph_mode": mode}
    arguments = AsyncEngineArgs(
        model=options.model,
        max_model_len=max(options.tokens) + 64,
        hf_overrides={"max_position_embeddings": max(options.tokens) + 64},
        max_num_seqs=max(options.requests),
        max_num_batched_tokens=16384,
        gpu_memory_utilization=options.memory,
        distributed_executor_backend="uni" if wanted.get("uni") else "mp",
        disable_log_stats=True,
        **more,
    )
    return AsyncLLM.from_engine_args(arguments)


async def rollout(
    engine: Any, requests: int, tokens: int, sampling: dict[str, Any], spread: float
) -> tuple[float, float, float]:
    """Seconds until all responses are there, and processor seconds of this process and of its children meanwhile.

    Raises:
        RuntimeError: a response of another length.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from gtpo_verl.verl_plugin.rollout.scheduler import read_whole

    parameters: dict[str, Any] = {"temperature": 1.0, "logprobs": 0, "max_tokens": tokens, "ignore_eos": True}
    parameters |= sampling
    if parameters.pop("whole", False):
        parameters = read_whole(parameters)
    elif "output_kind" in parameters:
        parameters["output_kind"] = RequestOutputKind[parameters["output_kind"]]

    async def one(number: int) -> None:
        await asyncio.sleep(spread * number / requests)
        prompt = {"prompt_token_ids": [random.randrange(3, 250) for _ in range(26)]}
        request = f"{tokens}-{number}-{random.random()}"
        last: Any = None
        async for output in engine.generate(prompt, SamplingParams(**parameters), request):
            last = output
        if len(last.outputs[0].token_ids) != tokens:
            raise RuntimeError(f"{len(last.outputs[0].token_ids)} tokens, not {tokens}")

    wall, own, children = time.perf_counter(), time.process_time(), children_cpu()
    await asyncio.gather(*(one(number) for number in range(requests)))
    return time.perf_counter() - wall, time.process_time() - own, children_cpu() - children


def children_cpu() -> float:
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(spent.user + spent.system for spent in times)


if __name__ == "__main__":
    main()
