"""Makes a large model, trains it with GTPO v2 and DAPO on one node, checks both against fp32, and writes the table.

Stages, in this order. The same command goes on where it was stopped: OUT/done names those that are left out.

  model      folder of random weights (unless one is given), prompts, reward
  preflight  what `gtpo-verl preflight` says of both runs on this node's Ray cluster
  gtpo       GTPO v2 on our engine: three steps and a save, through `ray job submit`
  resume     the fourth step, from that checkpoint, without the optimizer's moments
  dapo       DAPO on verl's own engine and rollouts: three steps
  check      log-probabilities and entropies against fp32 on one GPU; share of weights that the training changed
  table      OUT/table.md, OUT/*_32b.csv: every step, memory of every phase beside the preflight's estimate
"""

import argparse
import fcntl
import json
import multiprocessing
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.big_model import tables
from benchmarks.big_model.cluster import environment, ray_head
from benchmarks.big_model.inputs import SHAPES, save_data, save_model
from benchmarks.big_model.machine import GIB, Sampler, check_growth, fill, gpu_memory, gpu_name
from benchmarks.big_model.settings import JOBS, RESUMED_STEP, SAVED_STEP, Job, forced, overrides, quoted
from gtpo_verl.inspect import dump
from gtpo_verl.inspect.responses import ENTROPY, LOG_PROB, ROLLOUT_LOG_PROB

ROOT = Path(__file__).parents[2]
STAGES = ("model", "preflight", "gtpo", "resume", "dapo", "check", "table")
_ON_RAY = ("preflight", "gtpo", "resume", "dapo")
_NEEDS = {"preflight": "model", "gtpo": "model", "resume": "gtpo", "dapo": "model"}
# Every so many responses of a dump are checked: 8 of the 128 that eight groups of 16 are.
_EVERY = 16


class Table:
    """One folder of stages.

    Raises:
        ValueError: another command works in it, or it was begun with other settings; names them.
    """

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.out: Path = options.out.absolute()
        self.model: Path = options.model.absolute() if options.model else self.out / "model"
        self.data = self.out / "data"
        self.done = self.out / "done"
        self.checkpoint = tables.run_folder(self.out, JOBS["gtpo"]) / f"checkpoints/global_step_{SAVED_STEP}/actor"
        self.done.mkdir(parents=True, exist_ok=True)
        self._lock = (self.out / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"--out {self.out}: another command works there") from None
        self._hold_settings()

    def _hold_settings(self) -> None:
        options, path = self.options, self.out / "settings.json"
        settings = {
            "MODEL_FOLDER": str(self.model) if options.model else None,
            "shape": None if options.model else options.shape,
            "field": None if options.model else options.field,
            "gpus": options.gpus,
            "response-length": options.response_length,
            "override": options.override,
        }
        begun = tables.read_json(path) or settings
        for name, value in settings.items():
            if begun[name] != value:
                named = name if name.isupper() else f"--{name}"
                raise ValueError(f"--out {self.out} was begun with {named} {begun[name]}, not {value}; name another")
        path.write_text(json.dumps(settings, indent=2), encoding="utf-8")

    def run(self, stage: str, server: str | None) -> int:
        """Exit code of a stage; nothing happens where it was done before."""
        if (self.done / stage).exists():
            print(f"{stage}: done before", flush=True)
            return 0
        if (needed := _NEEDS.get(stage)) and not (self.done / needed).exists():
            raise ValueError(f"--stages {stage}: {needed} is not done in {self.out}")
        began = time.time()
        print(f"{stage}: begins at {time.strftime('%H:%M:%S')}", flush=True)
        if stage in JOBS:
            assert server is not None
            code = self.train(stage, server)
        elif stage == "preflight":
            assert server is not None
            code = self.preflight(server)
        else:
            stages: dict[str, Callable[[], None]] = {"model": self.inputs, "check": self.check, "table": self.table}
            stages[stage]()
            code = 0
        ending = "done" if code == 0 else f"exit code {code}"
        print(f"{stage}: {ending} after {time.time() - began:.0f} s", flush=True)
        if code == 0 and stage in (*_ON_RAY, "model"):
            (self.done / stage).write_text(f"{time.time() - began:.0f} s\n", encoding="utf-8")
        return code

    def inputs(self) -> None:
        save_data(self.data)
        if self.options.model is None and not self.model.exists():
            fields = {**SHAPES[self.options.shape], **dict(self.options.field)}
            # In a process of its own, which leaves nothing on a card.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                pool.submit(save_model, self.model, fields).result()

    def overrides(self, job: Job) -> list[str]:
        options = self.options
        extra = [f"gtpo_verl.run_dir={quoted(tables.run_folder(self.out, job))}", *options.override]
        return overrides(job, options.gpus, options.response_length, self.data / "reward.py", extra)

    def composed(self, job: Job) -> Any:
        """The configuration as `scripts/submit.sh` has it composed."""
        from gtpo_verl.configuration.composition import compose_config

        return compose_config([f"algorithm={job.algorithm}", *self._groups(), *self._paths(), *self.overrides(job)])

    def _groups(self) -> list[str]:
        given = [override.partition("=")[0] for override in self.options.override]
        defaults = {"model": "dapo_math", "scale": "32b_16x8"}
        return [f"{group}={name}" for group, name in defaults.items() if group not in given]

    def _paths(self) -> list[str]:
        paths = {
            "actor_rollout_ref.model.path": self.model,
            "data.train_files": self.data / "train.parquet",
            "data.val_files": self.data / "test.parquet",
        }
        return [f"{key}={quoted(path)}" for key, path in paths.items()]

    def preflight(self, server: str) -> int:
        code = 0
        for name in ("gtpo", "dapo"):
            job = JOBS[name]
            command = ["ray", "job", "submit", f"--address={server}", "--", "python3", "-m", "gtpo_verl.cli"]
            command += ["preflight", f"algorithm={job.algorithm}", *self._groups(), *self._paths()]
            code = self._call([*command, *self.overrides(job)], self.out / f"preflight_{name}.txt", {}) or code
        return code

    def train(self, stage: str, server: str) -> int:
        job = JOBS[stage]
        if stage == "resume" and not self.checkpoint.is_dir():
            raise ValueError(f"--stages resume: {self.checkpoint}: no such folder")
        variables = {
            "RAY_ADDRESS": server,
            "MODEL_PATH": str(self.model),
            "TRAIN_FILE": str(self.data / "train.parquet"),
            "VAL_FILE": str(self.data / "test.parquet"),
            "RUNS_DIR": str(self.out / "runs"),
        }
        command = [str(ROOT / "scripts" / job.script), *self.overrides(job)]
        if stage != "resume":
            self.record(job)
        with Sampler(tables.samples_file(self.out, stage), self.out):
            code = self._call(command, self.out / f"{stage}.log", variables)
        log = tables.run_folder(self.out, job) / "train.log"
        if code != 0 and log.exists():
            print(f"{log} ends with:\n{log.read_text(encoding='utf-8', errors='replace')[-6000:]}", file=sys.stderr)
        return code

    def _call(self, command: list[str], log: Path, variables: dict[str, str]) -> int:
        """Runs a command; its output goes to the terminal and to a file."""
        with (
            log.open("w", encoding="utf-8") as file,
            subprocess.Popen(
                command,
                env={**environment(), **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                encoding="utf-8",
                errors="replace",
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    file.write(line)
                    print(line, end="", flush=True)
            except BaseException:  # this command is ended; the block would wait for the other
                process.terminate()
                raise
        return process.returncode

    def record(self, job: Job) -> None:
        """Keeps what the table says of this machine and of the preflight, so that it needs neither cards nor model."""
        cards = gpu_memory()
        estimate = self.estimate(job, int(min(total for _, total in cards) * GIB) if cards else None)
        facts = {"card": gpu_name(), "date": time.strftime("%Y-%m-%d"), "estimate": estimate}
        (self.out / f"machine_{job.algorithm}.json").write_text(json.dumps(facts, indent=2), encoding="utf-8")

    def check(self) -> None:
        """Compares some responses of each engine's first step, which the untrained weights sampled, and of the resumed
        one, which the checkpoint did. What an earlier call compared is kept."""
        import torch
        from transformers import AutoConfig

        from benchmarks.big_model.exact import Checkpoint, ModelFolder, log_probs_and_entropies, share_changed

        device = "cuda" if torch.cuda.is_available() else "cpu"
        rows = tables.check_rows(self.out)
        known = {(row["algorithm"], row["step"], row["value"]) for row in rows}
        trained = [(JOBS[name], 1) for name in ("gtpo", "dapo") if (self.done / name).exists()]
        if not trained:
            raise ValueError(f"--stages check: neither gtpo nor dapo is done in {self.out}")
        before, config = ModelFolder(self.model), AutoConfig.from_pretrained(self.model)
        sources: list[tuple[str, ModelFolder | Checkpoint, list[tuple[Job, int]]]] = [("model folder", before, trained)]
        saved, resumed = JOBS["gtpo"], JOBS["resume"]
        if self.checkpoint.is_dir():
            after = Checkpoint(self.checkpoint)
            if (saved.algorithm, SAVED_STEP, tables.CHANGED) not in known:
                share = share_changed(before, after, device)
                rows.append(
                    {"algorithm": saved.algorithm, "step": SAVED_STEP, "weights": "checkpoint", "value": tables.CHANGED}
                    | {"mean": share}
                )
            sources.append(("checkpoint", after, [(resumed, RESUMED_STEP)] if (self.done / "resume").exists() else []))
        for named, weights, steps in sources:
            steps = [(job, step) for job, step in steps if (job.algorithm, step, ENTROPY) not in known]
            dumps = [tables.run_folder(self.out, job) / "tokens" / f"step_{step}.parquet" for job, step in steps]
            chosen = [dump.read(path).responses[::_EVERY] for path in dumps]
            pairs = [(torch.tensor(one.prompt_ids), torch.tensor(one.ids)) for some in chosen for one in some]
            exact = iter(log_probs_and_entropies(config, weights, pairs, device) if pairs else [])
            for (job, step), some in zip(steps, chosen, strict=True):
                log_p, entropy = (torch.cat(column) for column in zip(*(next(exact) for _ in some), strict=True))
                for value, truth in ((LOG_PROB, log_p), (ENTROPY, entropy), (ROLLOUT_LOG_PROB, log_p)):
                    error = (torch.cat([torch.tensor(one.values[value]) for one in some]) - truth).abs()
                    rows.append(
                        {"algorithm": job.algorithm, "step": step, "weights": named, "value": value}
                        | {"mean": error.mean().item(), "largest": error.max().item()}
                    )
        for algorithm in {row["algorithm"] for row in rows}:
            of_run = [row for row in rows if row["algorithm"] == algorithm]
            (self.out / f"check_{algorithm}.json").write_text(json.dumps(of_run, indent=2), encoding="utf-8")

    def table(self) -> None:
        runs = tables.runs_of(self.out)
        if not runs:
            raise ValueError(f"--stages table: no step of any run in {self.out}")
        steps, memory, estimates = [], [], {}
        for run in runs:
            facts = tables.read_json(path := self.out / f"machine_{run.algorithm}.json")
            if facts is None:
                raise ValueError(f"--stages table: {path}: no such file")
            estimates[run.algorithm] = facts["estimate"]
            steps += tables.step_rows(run, self.options.gpus, facts["card"], facts["date"])
            memory += tables.memory_rows(run, facts["estimate"])
        check = tables.check_rows(self.out)
        tables.write_csv(self.out / f"training_step_{self.options.gpus}gpu_32b.csv", steps)
        if memory:
            tables.write_csv(self.out / f"memory_{self.options.gpus}gpu_32b.csv", memory)
        text = tables.markdown(steps, memory, estimates, check)
        (self.out / "table.md").write_text(text, encoding="utf-8")
        print(text)

    def estimate(self, job: Job, gpu_bytes: int | None) -> dict[str, float]:
        """GiB by the preflight's phases, and `host`, `disk`; phases only where the size of a card is known."""
        from transformers import AutoConfig

        from gtpo_verl.preflight import budget
        from gtpo_verl.preflight.architecture import shape_of

        config, shape = self.composed(job), shape_of(AutoConfig.from_pretrained(self.model))
        parts = budget.host_memory(config, shape)
        size, count = budget.checkpoint_bytes(config, shape)
        sizes = {
            "host": max(parts["loading"], sum(parts.values()) - parts["loading"]),
            "disk": size * (count or 0),
        }
        if gpu_bytes is not None:
            sizes |= {phase.name: phase.total for phase in budget.phases(config, shape, gpu_bytes)}
        return {name: size / GIB for name, size in sizes.items()}


@contextmanager
def _growing(gib: int | None) -> Iterator[Callable[[], None]]:
    """Fills memory beside what the block does; it calls what it is given before it needs the memory."""
    if gib is None:
        yield lambda: None
        return
    process = multiprocessing.get_context("spawn").Process(target=fill, args=(gib,))
    process.start()

    def wait() -> None:
        process.join()
        if process.exitcode:
            print(f"--grow-memory {gib}: ended with exit code {process.exitcode}", file=sys.stderr, flush=True)

    try:
        yield wait
    finally:
        if process.is_alive():
            process.terminate()
        process.join()


def run(options: argparse.Namespace) -> int:
    """All stages of the command; stops at the first that fails, with its exit code."""
    if options.grow_memory is not None:
        check_growth(options.grow_memory)
    table = Table(options)
    stages = [stage for stage in STAGES if stage in options.stages]
    before = [stage for stage in stages if stage == "model"]
    on_ray = [stage for stage in stages if stage in _ON_RAY]
    after = [stage for stage in stages if stage in ("check", "table")]
    with _growing(options.grow_memory) as grown:
        for stage in before:
            if code := table.run(stage, None):
                return code
        grown()
    if any(not (table.done / stage).exists() for stage in on_ray):
        store = options.object_store * GIB if options.object_store else None
        with ray_head(options.gpus, store) as server:
            for stage in on_ray:
                if code := table.run(stage, server):
                    return code
    for stage in after:
        if code := table.run(stage, None):
            return code
    return 0


def _stages(text: str) -> list[str]:
    stages = text.split(",")
    if unknown := [stage for stage in stages if stage not in STAGES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(STAGES)}")
    return stages


def _field(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        return name, json.loads(value if equals else "")
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no KEY=VALUE with a number, true or false") from None


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/try_32b_4gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?", metavar="MODEL_FOLDER", help="without one: random weights")
    parser.add_argument("--stages", type=_stages, default=list(STAGES), help="separated by commas (default: all)")
    parser.add_argument("--gpus", type=int, choices=(1, 2, 4, 8), default=4, help="of this node (default: 4)")
    parser.add_argument("--out", type=Path, default=Path("runs/32b"), help="for everything (default: runs/32b)")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="32b", help="of random weights (default: 32b)")
    parser.add_argument(
        "--field",
        type=_field,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="of Qwen2Config, another size than the shape's: num_hidden_layers=2",
    )
    parser.add_argument("--response-length", type=_count, metavar="TOKENS", help="default: 1024; 4096 with 8 GPUs")
    parser.add_argument(
        "--grow-memory",
        type=_count,
        metavar="GIB",
        help="fill and free so much before Ray starts, where a virtual machine is given memory as it uses it",
    )
    parser.add_argument("--object-store", type=_count, metavar="GIB", default=16, help="of Ray (default: 16)")
    parser.add_argument(
        "--override", action="append", default=[], metavar="KEY=VALUE", help="Hydra override of all runs; the last word"
    )
    parser.add_argument("--print-overrides", action="store_true", help="what so few GPUs force; starts nothing")
    options = parser.parse_args(arguments)
    if options.response_length is None:
        options.response_length = 4096 if options.gpus == 8 else 1024
    if options.model is not None and not (options.model / "config.json").is_file():
        parser.error(f"MODEL_FOLDER: {options.model}: no config.json there")
    options.field = [list(pair) for pair in options.field]
    return options


def end_in_order() -> None:
    """On SIGTERM, Ray and what was submitted are ended on the way out."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def main() -> int:
    options = parse()
    if options.print_overrides:
        print("\n".join([*forced(options.gpus, options.response_length), *options.override]))
        return 0
    end_in_order()
    try:
        return run(options)
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
