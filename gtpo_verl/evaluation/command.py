"""``gtpo-verl eval``: check everything, sample what is missing, grade, compare, report."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gtpo_verl import __version__
from gtpo_verl.evaluation import devices, measures, models, problems, prompts, sampling, settings, table
from gtpo_verl.evaluation.estimates import MOST_SAMPLES
from gtpo_verl.evaluation.grading import Reward
from gtpo_verl.evaluation.models import Model
from gtpo_verl.evaluation.problems import Problem, ProblemFile
from gtpo_verl.evaluation.store import Store
from gtpo_verl.rewards.pool import Limits
from gtpo_verl.runtime.whole_file import whole_file
from gtpo_verl.tasks.cache import exclusive

SUMMARY = "summary.json"
_LOCK = ".lock"
# A shard is written when it has so many responses, or is so old: what a killed evaluation loses at the most.
_SHARD_ROWS, _SHARD_S = 64, 10.0
_CPU_BATCH_TOKENS = 4096


@dataclass(frozen=True)
class Request:
    """What the command line asks for; None: as the runs have it, or by default.

    Attributes:
        models: see `gtpo_verl.evaluation.models.find`.
        data: see `gtpo_verl.evaluation.problems.read_all`.
        n: samples of each problem.
        ks: of pass@k and majority@k; None: 1, 2, 4, ... and n.
        out: folder; None: ``evals/`` and the names of the data.
        template: text of the prompts of files in MATH's form, or a file with it.
        chat_template: file with a chat template for all models.
        reward: ``PATH`` or ``PATH:NAME`` of a reward function, as `settings.reward`.
        sampling: fields of `gtpo_verl.evaluation.settings.Sampling`.
        gpus, tensor_parallel: see `gtpo_verl.evaluation.devices.choose`.
        gpu_memory: share of a GPU's memory that vLLM may take.
        data_dir, cache_dir: where data sets and converted checkpoints lie.
    """

    models: Sequence[str]
    data: Sequence[str]
    n: int = 32
    ks: Sequence[int] | None = None
    out: Path | None = None
    template: str | None = None
    chat_template: Path | None = None
    reward: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    gpus: int | None = None
    tensor_parallel: int = 1
    gpu_memory: float = 0.9
    data_dir: Path = Path("data")
    cache_dir: Path = Path(".cache/gtpo-verl")


@dataclass(frozen=True)
class _Plan:
    """Everything that is known before an engine starts; `token_ids` by model, data set and problem."""

    models: list[Model]
    files: list[ProblemFile]
    n: int
    ks: list[int]
    out: Path
    sampling: settings.Sampling
    reward: Reward
    devices: devices.Devices
    token_ids: dict[str, dict[str, list[list[int]]]]
    settings: dict[tuple[str, str], dict[str, Any]]

    def store(self, model: Model, file: ProblemFile) -> Store:
        return Store(self.out / model.label / file.name)


def main(request: Request) -> int:
    """Runs the command and returns its exit code; an error is one line on standard error."""
    console = Console(stderr=True)
    try:
        with_k = samples(request.n, request.ks)
        plan = _plan(request, with_k)
        for file in plan.files:
            if file.repeated:
                console.print(f"{file.path}: {file.repeated} rows repeat a problem, and are left out", highlight=False)
        plan.out.mkdir(parents=True, exist_ok=True)

        def waiting() -> None:
            console.print(f"waiting for another evaluation in {plan.out}", highlight=False)

        with exclusive(plan.out / _LOCK, waiting):
            for model in plan.models:
                for file in plan.files:  # once more: nobody else may have begun since
                    plan.store(model, file).check(plan.settings[model.label, file.name])
            for model in plan.models:
                _complete(plan, model, request, console)
            summary = _summarize(plan)
    # RuntimeError: a download, an engine, or the processes of the reward.
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from what was sampled", file=sys.stderr)
        return 130
    table.show(summary, Console())
    print(f"responses and {SUMMARY} are in {plan.out}")
    return 0


def samples(n: int, ks: Sequence[int] | None) -> list[int]:
    """The ks of a table: 1, 2, 4, ... and n, unless others are named.

    Raises:
        ValueError: n or a k is out of range.
    """
    if not 1 <= n <= MOST_SAMPLES:
        raise ValueError(f"--n {n}: 1 to {MOST_SAMPLES}")
    if ks is None:
        return sorted({*(1 << power for power in range(n.bit_length())), n})
    for k in ks:
        if not 1 <= k <= n:
            raise ValueError(f"--k {k}: needs as many samples, and --n is {n}" if k > n else f"--k {k}: at least 1")
    return sorted(set(ks))


def _plan(request: Request, ks: list[int]) -> _Plan:
    if find_spec("vllm") is None:
        raise ImportError("vLLM is not installed; pip install 'gtpo-verl[gpu]' or 'gtpo-verl[cpu]'")
    if not 0 < request.gpu_memory <= 1:
        raise ValueError(f"--gpu-memory {request.gpu_memory:g}: above 0 and at most 1")
    if request.chat_template is not None and not request.chat_template.is_file():
        raise ValueError(f"--chat-template {request.chat_template}: no such file")
    found = models.find(request.models)
    chosen = devices.choose(request.gpus, request.tensor_parallel)
    how = settings.sampling(found, dict(request.sampling), chosen.on_cpu)
    if how.temperature == 0 and request.n > 1:
        raise ValueError(f"--temperature 0 gives the same response every time; --n 1, not {request.n}")
    reward = settings.reward(found, request.reward)
    template = request.template
    if template is not None and problems.PLACEHOLDER not in template and Path(template).is_file():
        template = Path(template).read_text("utf-8")
    files = problems.read_all(request.data, template, request.data_dir, request.cache_dir)
    reward.check(files)
    encoded, room = {}, []
    for model in found:
        prompts.check_heads(model, chosen.tensor_parallel)
        encoder = prompts.Encoder(model, request.chat_template)
        encoded[model.label] = {file.name: encoder.encode(file) for file in files}
        room.append(prompts.room(model, files, encoded[model.label], how.max_tokens))
    if how.max_tokens is None:
        how = replace(how, max_tokens=min(settings.LONGEST_RESPONSE, *room))
    out = request.out or Path("evals", "+".join(file.name for file in files))
    common = {**asdict(how), "reward": str(reward)}
    described = {
        (model.label, file.name): {
            **common,
            "model": model.fingerprint,
            "data": file.fingerprint,
            "prompts": prompts.fingerprint(encoded[model.label][file.name]),
        }
        for model in found
        for file in files
    }
    plan = _Plan(found, files, request.n, ks, out, how, reward, chosen, encoded, described)
    for model in found:
        for file in files:
            plan.store(model, file).check(described[model.label, file.name])
    return plan


@dataclass
class _Work:
    """One data set's share of a model's prompts."""

    file: ProblemFile
    store: Store
    missing: list[tuple[Problem, list[int], list[int]]]  # problem, its tokens, samples
    rows: list[dict[str, Any]] = field(default_factory=list)


def _complete(plan: _Plan, model: Model, request: Request, console: Console) -> None:
    """Samples and grades what a model lacks, all data sets with the same engines."""
    works = []
    for file in plan.files:
        store = plan.store(model, file)
        there = store.responses().select(["problem", "sample"])
        have = set(zip(there["problem"].to_pylist(), there["sample"].to_pylist(), strict=True))
        lacking = [
            (problem, token_ids, [sample for sample in range(plan.n) if (problem.row, sample) not in have])
            for problem, token_ids in zip(file.problems, plan.token_ids[model.label][file.name], strict=True)
        ]
        works.append(_Work(file, store, [each for each in lacking if each[2]]))
    works = [work for work in works if work.missing]
    count = sum(len(wanted) for work in works for _, _, wanted in work.missing)
    if count:
        weights = model.weights(request.cache_dir)
        for work in works:
            work.store.open(plan.settings[model.label, work.file.name])
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task(f"{model.label}: sampling", total=count)
            console.print(f"{model.label}: {count:,} responses to sample", highlight=False)
            _sample(plan, model, works, weights, request, lambda: progress.advance(task))
    for file in plan.files:
        plan.store(model, file).compact()


def _sample(
    plan: _Plan, model: Model, works: list[_Work], weights: Path, request: Request, advance: Callable[[], None]
) -> None:
    how = plan.sampling
    assert how.max_tokens is not None
    wanted, origins = [], []  # origins: of each prompt its work, problem and samples
    for work in works:
        for problem, token_ids, missing in work.missing:
            seeds = [settings.sample_seed(how.seed, work.file.fingerprint, problem.row, one) for one in missing]
            wanted.append(sampling.Prompt(token_ids, seeds))
            origins.append((work, problem, missing))
    engine: dict[str, Any] = {
        "model": str(weights.absolute()),
        "dtype": how.dtype,
        "max_model_len": max(len(prompt.token_ids) for prompt in wanted) + how.max_tokens,
        "seed": how.seed,
        "tensor_parallel_size": plan.devices.tensor_parallel,
        "disable_log_stats": True,
        # verl's rollouts have it on as well: the samples of a problem share their prompt.
        "enable_prefix_caching": True,
    }
    if plan.devices.on_cpu:
        # What the CPU's KV cache may take is a variable; vLLM would reserve this share of the memory besides. Prompts
        # are read whole, for vllm/v1/worker/gpu_model_runner.py (`_bookkeeping_sync`) sets a request's random generator
        # back after a part of one, and torch's CPU generator has no offset.
        batch = max(_CPU_BATCH_TOKENS, engine["max_model_len"])
        engine |= {"enforce_eager": True, "gpu_memory_utilization": 0.1}
        engine |= {"enable_chunked_prefill": False, "max_num_batched_tokens": batch}
    else:
        engine |= {"gpu_memory_utilization": request.gpu_memory}
    params = {"temperature": how.temperature, "top_p": how.top_p, "top_k": how.top_k, "max_tokens": how.max_tokens}
    responses = sampling.sample(engine, params, wanted, plan.devices, plan.out / model.label)
    grading: list[tuple[_Work, Problem, int, sampling.Response, Future]] = []
    pool = ThreadPoolExecutor(Limits.from_environment().processes)
    last = time.monotonic()

    def collect(wait: bool) -> None:
        left = []
        for entry in grading:
            work, problem, one, response, verdict = entry
            if not wait and not verdict.done():
                left.append(entry)
                continue
            try:
                graded = verdict.result()
            except Exception as error:
                raise ValueError(
                    f"{work.file.path}: row {problem.row}: the reward {plan.reward} fails: "
                    f"{type(error).__name__}: {error}"
                ) from error
            work.rows.append(
                {
                    "problem": problem.row,
                    "sample": one,
                    "data_source": problem.data_source,
                    # A lone surrogate is no text for parquet.
                    "text": response.text.encode("utf-8", "replace").decode("utf-8"),
                    "tokens": response.tokens,
                    "finish_reason": response.finish_reason,
                    **asdict(graded),
                }
            )
            advance()
        grading[:] = left

    def write() -> None:
        for work in works:
            if work.rows:
                rows, work.rows = work.rows, []
                work.store.append(rows)

    try:
        for response in responses:
            if response is not None:
                work, problem, missing = origins[response.prompt]
                verdict = pool.submit(plan.reward.grade, problem, response.text)
                grading.append((work, problem, missing[response.sample], response, verdict))
            collect(wait=False)
            if sum(len(work.rows) for work in works) >= _SHARD_ROWS or time.monotonic() - last > _SHARD_S:
                write()
                last = time.monotonic()
        collect(wait=True)
    finally:
        responses.close()  # type: ignore[attr-defined]  # it is a generator
        pool.shutdown(cancel_futures=True)
        write()


def _summarize(plan: _Plan) -> dict[str, Any]:
    """The numbers of all models, as JSON, written to the folder and returned."""
    data = {}
    for file in plan.files:
        values = {}
        for model in plan.models:
            responses = plan.store(model, file).responses()
            asked = [sample < plan.n for sample in responses["sample"].to_pylist()]  # an earlier --n may be larger
            values[model.label] = measures.by_problem(responses.filter(asked), plan.n, plan.ks)
        first = plan.models[0].label
        compared = []
        for measure in values[first]:
            others = {label: each[measure] for label, each in values.items() if label != first and measure in each}
            compared += measures.differences(measure, values[first][measure], others)
        data[file.name] = {
            "path": str(file.path),
            "problems": len(file.problems),
            "repeated": file.repeated,
            "models": {
                label: [asdict(measures.estimate(measure, found)) for measure, found in each.items()]
                for label, each in values.items()
            },
            "differences_to": first,
            "differences": [asdict(one) for one in compared],
        }
    summary = {
        "n": plan.n,
        "ks": plan.ks,
        "sampling": asdict(plan.sampling),
        "reward": str(plan.reward),
        "models": {
            model.label: {"folder": str(model.checkpoint or model.folder), "fingerprint": model.fingerprint}
            for model in plan.models
        },
        "data": data,
        "versions": {"gtpo_verl": __version__, "vllm": _version("vllm"), "transformers": _version("transformers")},
    }
    with whole_file(plan.out / SUMMARY) as part:
        part.write_text(json.dumps(summary, indent=2) + "\n")
    return summary


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
