"""Make a model and its data sets, once; later calls find them in the cache."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from gtpo_verl.tasks import arithmetic, data_files, muon, reasoning, smollm2, tiny_model
from gtpo_verl.tasks.cache import build_once, content_key


@dataclass(frozen=True)
class Prepared:
    """Paths for verl: ``model`` (``actor_rollout_ref.model.path``), ``train`` and ``val`` (``data.*_files``)."""

    model: Path
    train: Path
    val: Path

    @classmethod
    def within(cls, folder: Path) -> Prepared:
        return cls(model=folder / "model", train=folder / "train.parquet", val=folder / "val.parquet")


def prepare_arithmetic(
    cache_dir: str | os.PathLike[str],
    seed: int = 0,
    progress: bool = True,
    *,
    task: arithmetic.ArithmeticConfig | None = None,
    model: tiny_model.ModelConfig | None = None,
    warmup: tiny_model.WarmupConfig | None = None,
    train_problems: int = 4096,
    val_problems: int = 64,
    threads: int = 1,
) -> Prepared:
    """Prepare the worked-arithmetic task: data sets, and a tiny Qwen2 warmed up on worked solutions.

    Args:
        cache_dir: where prepared folders are kept; made if absent.
        seed: decides problems, initial weights and the order of training.
        progress: print what is measured to the terminal.
        task, model, warmup: settings; None for the defaults.
        train_problems, val_problems: rows of the two data sets, disjoint.
        threads: torch threads for the warm-up. More than one gains little on matrices this small, and where other
            processes compete for the processors their spinning makes it many times slower.

    Raises:
        tiny_model.WarmupError: the model missed its target accuracy.
    """
    task = task or arithmetic.ArithmeticConfig()
    model_config = model or tiny_model.ModelConfig()
    warmup = warmup or tiny_model.WarmupConfig()
    settings: dict[str, Any] = {
        "seed": seed,
        "task": task,
        "model": model_config,
        "warmup": warmup,
        "train_problems": train_problems,
        "val_problems": val_problems,
    }
    key = content_key(settings, [arithmetic, data_files, muon, tiny_model], ["torch", "transformers"])

    def build(folder: Path) -> None:
        prepared = Prepared.within(folder)
        # Data sets first: they take a second, and a mistake in them should not cost a warm-up.
        data_files.write_data_file(arithmetic.rows("train", train_problems, seed, task), prepared.train)
        data_files.write_data_file(arithmetic.rows("validation", val_problems, seed, task), prepared.val)
        result = _warmed_up(prepared.model, seed, model_config, warmup, task, threads, progress)
        (folder / "warmup.json").write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")

    return Prepared.within(build_once(Path(cache_dir), f"arithmetic-{key}", build))


def prepare_smollm2(
    cache_dir: str | os.PathLike[str],
    seed: int = 0,
    progress: bool = True,
    *,
    dtype: torch.dtype = torch.float32,
    tasks: Sequence[reasoning.ReasoningTask] = reasoning.TASKS,
    train_problems: int = 2048,
    val_problems: int = 64,
    transfer_tasks: Sequence[reasoning.ReasoningTask] = (),
    transfer_problems: int = 0,
) -> Prepared:
    """Prepare SmolLM2-135M-Instruct and data sets of reasoning-gym.

    Args:
        cache_dir: where prepared folders are kept; made if absent. The model takes 0.5 GB in float32.
        seed: decides the problems.
        progress: say on the terminal what is going on.
        dtype: of the saved weights.
        tasks: which of reasoning-gym's data sets, in equal parts.
        train_problems, val_problems: rows of the two data sets, disjoint.
        transfer_tasks, transfer_problems: tasks that are validated on and never trained on, in equal parts, and their
            rows, which follow those of ``tasks`` in the validation file.

    Raises:
        smollm2.ModelMissingError: the package with the weights is not installed; the message says how to.
        ValueError: a transfer task has the data source of a task that is trained on, so that verl would report both as
            one.
    """
    both = {task.data_source for task in tasks} & {task.data_source for task in transfer_tasks}
    if both:
        raise ValueError(f"{', '.join(sorted(both))}: both trained on and a transfer task; verl reports them as one")
    console = Console(quiet=not progress)
    folder = Path(cache_dir)

    def convert(scratch: Path) -> None:
        with console.status("Converting SmolLM2-135M-Instruct from GGUF"):
            smollm2.convert(scratch, dtype)
        console.print("SmolLM2-135M-Instruct converted", highlight=False)

    def write_data(scratch: Path) -> None:
        data_files.write_data_file(reasoning.rows("train", train_problems, seed, tasks), scratch / "train.parquet")
        validation = reasoning.rows("validation", val_problems, seed, tasks)
        if transfer_tasks:
            validation += reasoning.rows("validation", transfer_problems, seed, transfer_tasks)
        for index, row in enumerate(validation):
            row["extra_info"]["index"] = index
        data_files.write_data_file(validation, scratch / "val.parquet")

    # The model does not depend on seed and tasks: it is kept apart, once.
    smollm2.find_weights()
    model_key = content_key({"dtype": str(dtype)}, [smollm2], ["transformers", "gguf", smollm2.PACKAGE])
    model = build_once(folder, f"smollm2-{model_key}", convert)
    settings = {
        "seed": seed,
        "tasks": list(tasks),
        "train_problems": train_problems,
        "val_problems": val_problems,
        "transfer_tasks": list(transfer_tasks),
        "transfer_problems": transfer_problems,
    }
    data_key = content_key(settings, [data_files, reasoning], ["reasoning-gym"])
    data = build_once(folder, f"reasoning-{data_key}", write_data)
    return Prepared(model=model, train=data / "train.parquet", val=data / "val.parquet")


def prepare_smollm2_steps(cache_dir: str | os.PathLike[str], seed: int = 0, progress: bool = True) -> Prepared:
    """Prepare the experiment of docs/experiment.md: `prepare_smollm2` with `reasoning.STEPS_TASKS`.

    The training file has 4,096 rows, the validation file 128 of the same tasks and 64 of `reasoning.TRANSFER_TASKS`.
    """
    return prepare_smollm2(
        cache_dir,
        seed,
        progress,
        tasks=reasoning.STEPS_TASKS,
        train_problems=4096,
        val_problems=128,
        transfer_tasks=reasoning.TRANSFER_TASKS,
        transfer_problems=64,
    )


def _warmed_up(
    folder: Path,
    seed: int,
    model_config: tiny_model.ModelConfig,
    warmup: tiny_model.WarmupConfig,
    task: arithmetic.ArithmeticConfig,
    threads: int,
    progress: bool,
) -> tiny_model.WarmupResult:
    console = Console(quiet=not progress)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with (
            torch.random.fork_rng(devices=[]),
            console.status("Warming up a tiny model on worked arithmetic") as status,
        ):
            torch.manual_seed(seed)
            tokenizer = tiny_model.build_tokenizer()
            model = tiny_model.build_model(model_config, tokenizer)

            def show(measured: dict[str, float]) -> None:
                text = (
                    f"Warming up a tiny model: step {measured['step']:.0f}, {measured['accuracy']:.0%} of samples "
                    f"right (stops at {warmup.target_accuracy:.0%}), {measured['seconds']:.0f} s"
                )
                status.update(text)
                if not console.is_interactive:
                    console.print(text, highlight=False, soft_wrap=True)

            result = tiny_model.warm_up(model, tokenizer, seed, warmup, task, show)
            tiny_model.save(model, tokenizer, folder)
    finally:
        torch.set_num_threads(threads_before)
    parameters = sum(p.numel() for p in model.parameters())
    console.print(
        f"Tiny model ready: {parameters:,} parameters, {result.steps} steps, {result.accuracy:.0%} of samples right, "
        f"{result.seconds:.0f} s",
        highlight=False,
        soft_wrap=True,
    )
    return result
