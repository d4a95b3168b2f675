"""Times, bytes, peak memory and errors of token log-probabilities and entropies: ours beside what else there is.

    python benchmarks/logprob_entropy.py --csv out.csv                       # all sections, one H100 or H200
    python benchmarks/logprob_entropy.py --sections odd liger --csv out.csv  # vocabularies of any size; Liger's shape
    python benchmarks/logprob_entropy.py --sections cpu --csv out.csv        # on a machine without a GPU

Every method is checked against float64 on sampled rows in the run that times it; the CSV is written row by row. A
method whose package is missing is named and left out; only PyTorch and Triton are needed. Compared when importable:
verl (its functions and its Triton linear_cross_entropy), liger_kernel (its Hopper kernel also needs
nvidia-cutlass-dsl), flash_attn (its Triton cross-entropy).
"""

import argparse
import csv
import datetime
import functools
import gc
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gtpo_verl.entropy import linear_logprob, linear_logprob_entropy, logprob, logprob_entropy

GIB = 2**30
Result = tuple[torch.Tensor | None, torch.Tensor | None]  # log_prob, entropy


@dataclass
class Problem:
    """Inputs of one section and the float64 truth on sampled rows."""

    name: str
    labels: torch.Tensor
    sample: torch.Tensor
    log_prob: torch.Tensor
    entropy: torch.Tensor
    work: float  # bytes (logits) or floating-point operations (hidden) of one pass
    unit: str
    shape: str


class Table:
    def __init__(self, path: str | None):
        self.rows: list[dict[str, object]] = []
        self.path = path
        self.card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"

    def add(self, problem: Problem, method: str, **columns: object) -> None:
        row = {"section": problem.name, "shape": problem.shape, "method": method, **columns}
        print("  ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()), flush=True)
        self.rows.append(row)
        self.write()

    def write(self) -> None:
        if not self.path or not self.rows:
            return
        import importlib.metadata

        versions = {}
        for package in ("torch", "triton", "verl", "liger-kernel", "nvidia-cutlass-dsl", "flash-attn"):
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        about = {"card": self.card, "date": datetime.date.today().isoformat(), **versions}
        columns = list(dict.fromkeys(key for row in self.rows for key in row)) + list(about)
        with open(self.path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows({**row, **about} for row in self.rows)

    def summary(self) -> None:
        """What was measured, in few columns, last."""
        print(f"\n{self.card}")
        for row in self.rows:
            numbers = {key: row[key] for key in ("ms", "rate", "ratio", "extra_gib") if key in row}
            text = "  ".join(f"{key} {value:.4g}" for key, value in numbers.items())
            print(f"{row['section']:30s} {row['shape']:32s} {row['method']}: {text} {row.get('note', '')}")


def milliseconds(run: Callable[[], object], budget: float = 0.4) -> float:
    """Median of repeated runs; on a GPU with the L2 cache flushed in between."""
    if torch.cuda.is_available():
        from triton.testing import do_bench

        return do_bench(run, warmup=100, rep=int(budget * 1000), return_mode="median")
    run()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - started < budget:
        before = time.perf_counter()
        run()
        times.append((time.perf_counter() - before) * 1e3)
    return statistics.median(times)


def longest_kernel(run: Callable[[], object]) -> str:
    """Name of the GPU kernel that takes most of the time: which path a library has taken."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        run()
        torch.cuda.synchronize()
    return max(profiled.key_averages(), key=lambda event: event.self_device_time_total).key[:120]


def measure(
    table: Table,
    problem: Problem,
    method: str,
    run: Callable[[], Result],
    budget: float = 0.4,
    error_of: Callable[[], float] | None = None,
) -> float:
    """Adds a row for one method; nan where it failed, with the reason in the row."""
    on_gpu = torch.cuda.is_available()
    extra = float("nan")
    try:
        if on_gpu:
            run()  # compile outside the memory reading
            torch.cuda.synchronize()
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        log_prob, entropy = run()
        if on_gpu:
            torch.cuda.synchronize()
            extra = (torch.cuda.max_memory_allocated() - before) / GIB
        columns: dict[str, object] = {} if error_of is None else {"gradient_error": error_of()}
        if log_prob is not None:
            error = (log_prob.detach()[problem.sample].double() - problem.log_prob).abs()
            columns["log_prob_error"] = error.max().item()
        if entropy is not None:
            sampled = entropy.detach()[problem.sample].double()
            error = (sampled - problem.entropy).abs()
            columns["entropy_error"] = error.max().item()
            columns["entropy_relative_error"] = (error / (problem.entropy + 1e-6)).max().item()
            columns["entropy_zero_or_less"] = f"{(sampled <= 0).sum().item()} of {len(sampled)}"
        del log_prob, entropy
        if on_gpu:
            columns["longest_kernel"] = longest_kernel(run)
        ms = milliseconds(run, budget)
    except Exception as failure:
        table.add(problem, method, ms=float("nan"), note=repr(failure)[:200])
        return float("nan")
    finally:
        if on_gpu:
            gc.collect()
            torch.cuda.empty_cache()
    table.add(problem, method, ms=ms, rate=problem.work / ms / 1e6, unit=problem.unit, extra_gib=extra, **columns)
    return ms


def against(table: Table, problem: Problem, ways: dict[str, Callable[[], Any]], rounds: int) -> None:
    """Ratio of every method's time to the first one's, the two taking turns.

    A card that draws its full power lowers its clock, so that of two matmuls the one that runs later looks slower.
    """
    for method in list(ways)[1:]:
        first = next(iter(ways))
        times: dict[str, list[float]] = {first: [], method: []}
        for turn in range(rounds + 2):
            for name, taken in times.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                ways[name]()
                end.record()
                end.synchronize()
                if turn >= 2:
                    taken.append(start.elapsed_time(end))
        base, ms = (statistics.median(taken) for taken in times.values())
        table.add(problem, f"{method}, taking turns with: {first}", ms=ms, base_ms=base, ratio=ms / base)


def beginning_with(first: str, ways: dict[str, Callable[[], Any]]) -> dict[str, Callable[[], Any]]:
    """Ours in turn with ``first``; nothing where that did not run."""
    return {name: ways[name] for name in (first, *ways) if name == first or "ours" in name} if first in ways else {}


def truth(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    log_p = torch.log_softmax(logits.double(), -1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    return log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1), entropy


def policy_logits(tokens: int, vocabulary: int, dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits with a realistic share of near-certain tokens, and labels that are mostly the likely one."""
    torch.manual_seed(0)
    logits = torch.empty(tokens, vocabulary, dtype=dtype, device=device)
    labels = torch.empty(tokens, dtype=torch.int64, device=device)
    for i in range(0, tokens, 1024):
        block = torch.randn(min(1024, tokens - i), vocabulary, device=device) * 2 + 5
        n = len(block)
        top = torch.randint(0, vocabulary, (n,), device=device)
        block[torch.arange(n), top] += torch.rand(n, device=device) * 30
        logits[i : i + n] = block
        other = torch.randint(0, vocabulary, (n,), device=device)
        labels[i : i + n] = torch.where(torch.rand(n, device=device) < 0.8, top, other)
    return logits, labels


def logits_problem(name: str, logits: torch.Tensor, labels: torch.Tensor, passes: int = 1) -> Problem:
    sample = torch.arange(0, len(labels), max(1, len(labels) // 512), device=logits.device)[:512]
    parts = [truth(logits[rows], labels[rows]) for rows in sample.split(64)]
    log_prob, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
    dtype = str(logits.dtype).removeprefix("torch.")
    shape = f"{len(labels)} x {logits.shape[-1]} {dtype}"
    return Problem(name, labels, sample, log_prob, entropy, passes * logits.nbytes, "GB/s", shape)


def optional(table: Table, problem: Problem, method: str, load: Callable[[], Any]) -> Any:
    """What ``load`` imports, or None with a row that says why not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return load()
    except Exception as missing:
        table.add(problem, method, ms=float("nan"), note=f"not available: {missing!r}"[:200])
        return None


def log_softmax_fp32(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits.float(), -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def selective_log_softmax(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """TRL's way: for half precision, a log-softmax per row in the logits' own dtype."""
    rows = [torch.log_softmax(row, -1)[label] for row, label in zip(logits, labels, strict=True)]
    return torch.stack(rows)


def chunked_entropy(logits: torch.Tensor, chunk: int = 128) -> torch.Tensor:
    """TRL's way: log-softmax of 128 rows at a time, in the logits' dtype."""
    parts = []
    for rows in logits.split(chunk):
        log_p = torch.log_softmax(rows, -1)
        parts.append(-(log_p.exp() * log_p).sum(-1))
    return torch.cat(parts)


def verl_functions():
    from verl.utils import torch_functional

    return torch_functional


def flash_cross_entropy():
    from flash_attn.ops.triton.cross_entropy import cross_entropy_loss

    return cross_entropy_loss


def logits_forward(
    table: Table, tokens: int, vocabulary: int, dtype: torch.dtype, device: str, others: bool = True
) -> None:
    logits, labels = policy_logits(tokens, vocabulary, dtype, device)
    problem = logits_problem("logits, forward", logits, labels)
    if device == "cuda":
        copy = torch.empty_like(logits)
        ms = milliseconds(lambda: copy.copy_(logits))
        table.add(problem, "copy (read + write)", ms=ms, rate=2 * logits.nbytes / ms / 1e6, unit="GB/s")
        del copy
    with torch.no_grad():
        measure(table, problem, "ours: log-probability and entropy", lambda: logprob_entropy(logits, labels))
        if not others:
            return
        verl = optional(table, problem, "verl entropy, eager", verl_functions)
        if verl:
            measure(table, problem, "verl entropy, eager", lambda: (None, verl.entropy_from_logits(logits)))
            measure(
                table, problem, "verl entropy, chunked", lambda: (None, verl.entropy_from_logits_with_chunking(logits))
            )
            if device == "cuda":
                compiled = torch.compile(verl.entropy_from_logits, dynamic=True)
                measure(table, problem, "verl entropy, compiled", lambda: (None, compiled(logits)))
                chunked = torch.compile(verl.entropy_from_logits_with_chunking, dynamic=True)
                measure(table, problem, "verl entropy, chunked and compiled", lambda: (None, chunked(logits)))
            rows = verl.logprobs_from_logits_v2
            measure(table, problem, "verl log-probability, rows", lambda: (rows(logits, labels), None), budget=0.1)
        measure(table, problem, "log-softmax in fp32", lambda: (log_softmax_fp32(logits, labels), None))
        measure(
            table,
            problem,
            "TRL-style log-probability",
            lambda: (selective_log_softmax(logits, labels), None),
            budget=0.1,
        )
        measure(table, problem, "TRL-style entropy", lambda: (None, chunked_entropy(logits)))
        if device == "cuda":
            flash = optional(table, problem, "flash-attn cross-entropy", flash_cross_entropy)
            if flash:
                measure(table, problem, "flash-attn cross-entropy", lambda: (-flash(logits, labels)[0], None))


def logits_backward(
    table: Table, tokens: int, vocabulary: int, dtype: torch.dtype, device: str, others: bool = True
) -> None:
    """Forward and backward of the log-probability; the update."""
    source, labels = policy_logits(tokens, vocabulary, dtype, device)
    source.requires_grad_()
    problem = logits_problem("logits, forward and backward", source.detach(), labels, passes=3)
    grad = torch.randn(tokens, device=device)

    # The logits come out of an operation, as the LM head's do; making them is not timed: the same ones are reused. An
    # in-place backward leaves gradients there, which cost the next forward what logits cost.
    def run(log_prob: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Result]:
        logits = source * 1.0

        def once() -> Result:
            value = log_prob(logits)
            torch.autograd.grad(value, logits, grad.to(value.dtype))
            return None, None

        return once

    def gradient_error(log_prob: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> float:
        """Relative error of the gradient of the sampled rows, against float64."""
        rows = problem.sample[:64]
        logits = source.detach()[rows].clone().requires_grad_()
        ours = torch.autograd.grad(log_prob(logits * 1.0, rows), logits, grad[rows])[0].double()
        exact = logits.detach().double().requires_grad_()
        value = torch.log_softmax(exact, -1).gather(-1, labels[rows].unsqueeze(-1)).squeeze(-1)
        wanted = torch.autograd.grad(value, exact, grad[rows].double())[0]
        return ((ours - wanted).norm() / wanted.norm()).item()

    def ours(inplace: bool) -> None:
        of = functools.partial(logprob, inplace_backward=inplace)
        error = functools.partial(gradient_error, lambda x, rows: of(x, labels[rows]))
        method = "ours, in place" if inplace else "ours, new tensor"
        measure(table, problem, method, run(lambda x: of(x, labels)), error_of=error)

    ours(inplace=True)
    ours(inplace=False)
    if not others:
        return
    measure(table, problem, "log-softmax in fp32", run(lambda x: log_softmax_fp32(x, labels)))
    verl = optional(table, problem, "verl log-probability, rows", verl_functions)
    if verl:
        rows = verl.logprobs_from_logits_v2
        measure(table, problem, "verl log-probability, rows", run(lambda x: rows(x, labels)), budget=0.1)
    if device == "cuda":
        flash = optional(table, problem, "flash-attn cross-entropy, in place", flash_cross_entropy)
        if flash:
            in_place = run(lambda x: -flash(x, labels, inplace_backward=True)[0])
            measure(table, problem, "flash-attn cross-entropy, in place", in_place)


LIGER = "Liger fused linear scaled cross-entropy"


def hidden(table: Table, tokens: int, width: int, vocabulary: int, device: str, turns_with_liger: bool = False) -> None:
    """From hidden states: the LM head's matmul included."""
    torch.manual_seed(0)
    dtype = torch.bfloat16
    states = torch.randn(tokens, width, device=device, dtype=dtype)
    weight = (torch.randn(vocabulary, width, device=device) * 0.03).to(dtype)
    labels = torch.randint(0, vocabulary, (tokens,), device=device)
    sample = torch.arange(0, tokens, max(1, tokens // 128), device=device)[:128]
    log_prob, entropy = truth(states[sample].double() @ weight.double().T, labels[sample])
    shape = f"{tokens} x {width} -> {vocabulary} bfloat16"
    work = 2.0 * tokens * width * vocabulary
    problem = Problem("hidden states, forward", labels, sample, log_prob, entropy, work, "GFLOP/s", shape)

    def bare(chunk: int, out: torch.dtype) -> Callable[[], Result]:
        def run() -> Result:
            buffer = torch.empty(chunk, vocabulary, device=device, dtype=out)
            for i in range(0, tokens, chunk):
                rows = states[i : i + chunk]
                options = {} if out == dtype else {"out_dtype": out}
                torch.mm(rows, weight.T, out=buffer[: len(rows)], **options)
            return None, None

        return run

    def load_verl():
        from verl.utils.kernel.linear_cross_entropy import linear_cross_entropy

        return linear_cross_entropy

    def load_liger():
        from liger_kernel.ops import LigerFusedLinearScaledCrossEntropyFunction

        return LigerFusedLinearScaledCrossEntropyFunction

    def liger_outputs(liger: Any, states: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss, entropy = liger.apply(states, weight, labels, 1.0, -100, 1, True)
        return -loss, entropy

    verl = optional(table, problem, "verl linear_cross_entropy", load_verl)
    liger = optional(table, problem, LIGER, load_liger)
    ways: dict[str, Callable[[], Any]] = {
        "matmul alone, 2048 tokens a chunk": bare(2048, dtype),
        "matmul alone, 1024 tokens a chunk": bare(1024, dtype),
        "matmul alone, fp32 out, 2048 tokens a chunk": bare(2048, torch.float32),
        "ours, fp32 logits": lambda: linear_logprob_entropy(states, weight, labels),
        "ours, bf16 logits": lambda: linear_logprob_entropy(states, weight, labels, logits_dtype=dtype),
    }
    if verl:
        ways["verl linear_cross_entropy"] = lambda: verl(states, weight, labels, 1.0, "none")
    if liger:
        ways[LIGER] = lambda: liger_outputs(liger, states, weight)
    with torch.no_grad():
        ran = {method: run for method, run in ways.items() if measure(table, problem, method, run) > 0}
        if device == "cuda":
            against(table, problem, ran, rounds=12)
            if turns_with_liger:
                against(table, problem, beginning_with(LIGER, ran), rounds=12)

    states.requires_grad_(), weight.requires_grad_()
    problem = Problem(
        "hidden states, forward and backward", labels, sample, log_prob, entropy, 3 * work, "GFLOP/s", shape
    )
    grad = torch.randn(tokens, device=device)
    few = sample[:64]
    # The gradient of the sampled hidden states, in float64: (p - 1{label}) W, minus sign included.
    with torch.no_grad():
        p = torch.softmax(states[few].double() @ weight.double().T, -1)
        p[torch.arange(len(few)), labels[few]] -= 1
        wanted = -(grad[few].double().unsqueeze(-1) * p) @ weight.double()
        del p

    def both(log_prob: Callable[[], torch.Tensor]) -> Callable[[], Result]:
        def run() -> Result:
            value = log_prob()
            torch.autograd.grad(value, (states, weight), grad.to(value.dtype))
            return None, None

        return run

    def gradient_error(log_prob: Callable[[], torch.Tensor]) -> float:
        ours = torch.autograd.grad(log_prob(), states, grad)[0][few].double()
        return ((ours - wanted).norm() / wanted.norm()).item()

    ways = {
        "ours, fp32 logits": lambda: linear_logprob(states, weight, labels),
        "ours, bf16 logits": lambda: linear_logprob(states, weight, labels, logits_dtype=dtype),
    }
    if verl:
        ways["verl linear_cross_entropy"] = lambda: verl(states, weight, labels, 1.0, "none")[0]
    if liger:
        ways[LIGER] = lambda: liger_outputs(liger, states, weight)[0]
    ran = {}
    for method, log_prob_of in ways.items():
        run = both(log_prob_of)
        if measure(table, problem, method, run, error_of=functools.partial(gradient_error, log_prob_of)) > 0:
            ran[method] = run
    if device == "cuda":
        against(table, problem, ran, rounds=4)
        if turns_with_liger:
            against(table, problem, beginning_with(LIGER, ran), rounds=8)


def cpu(table: Table) -> None:
    """The two functions of verl's log-prob pass on a CPU beside ours, in fp32, from tiny vocabularies to Qwen's."""
    for tokens, vocabulary in ((4096, 64), (4096, 512), (64, 49152), (32, 151936)):
        logits, labels = policy_logits(tokens, vocabulary, torch.float32, "cpu")
        problem = logits_problem("CPU, log-prob pass", logits, labels)
        verl = optional(table, problem, "verl", verl_functions)
        with torch.no_grad():
            ours = measure(table, problem, "ours", functools.partial(logprob_entropy, logits, labels))
            if verl:
                theirs = functools.partial(verl_log_prob_pass, verl, logits, labels)
                print(f"  ours / verl = {ours / measure(table, problem, 'verl', theirs):.3f}")


def verl_log_prob_pass(verl: Any, logits: torch.Tensor, labels: torch.Tensor) -> Result:
    return verl.logprobs_from_logits(logits, labels), verl.entropy_from_logits(logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = ["logits", "odd", "hidden", "liger"]
    parser.add_argument("--sections", nargs="+", choices=[*sections, "cpu"], default=sections)
    parser.add_argument("--csv", help="where to write the table")
    arguments = parser.parse_args()
    if not torch.cuda.is_available() and arguments.sections != ["cpu"]:
        parser.error("every section but cpu needs a CUDA device; use --sections cpu")
    table = Table(arguments.csv)
    print(f"{table.card}, torch {torch.__version__}, {datetime.date.today()}")
    try:
        if "logits" in arguments.sections:
            for tokens, vocabulary in ((8192, 152064), (8192, 49152)):
                logits_forward(table, tokens, vocabulary, torch.bfloat16, "cuda")
                logits_backward(table, tokens, vocabulary, torch.bfloat16, "cuda")
            logits_forward(table, 4096, 152064, torch.float32, "cuda")
        if "odd" in arguments.sections:  # rows that start anywhere; the even vocabulary beside them
            for tokens, vocabulary, dtype in (
                (8192, 50257, torch.bfloat16),
                (8192, 50304, torch.bfloat16),
                (8192, 151657, torch.bfloat16),
                (4096, 50257, torch.float32),
            ):
                logits_forward(table, tokens, vocabulary, dtype, "cuda", others=False)
                logits_backward(table, tokens, vocabulary, dtype, "cuda", others=False)
        if "hidden" in arguments.sections:
            hidden(table, 22528, 5120, 152064, "cuda")
            hidden(table, 32768, 576, 49152, "cuda")
        if "liger" in arguments.sections:  # the shape that Liger publishes figures for
            hidden(table, 8192, 4096, 131072, "cuda", turns_with_liger=True)
        if "cpu" in arguments.sections:
            cpu(table)
    finally:
        table.summary()


if __name__ == "__main__":
    main()
