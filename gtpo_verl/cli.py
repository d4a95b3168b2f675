"""The command line: `gtpo-verl COMMAND`, of which `gtpo-verl --help` has the list."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from gtpo_verl import tasks
from gtpo_verl.runtime.caches import cache_variables
from gtpo_verl.runtime.loopback import direct_loopback
from gtpo_verl.runtime.text import end_output, hold_to_terminal, open_standard_streams, start_over_in_utf8


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    if arguments is None:  # this process is the command's
        open_standard_streams()
        start_over_in_utf8()
    parser = argparse.ArgumentParser(prog="gtpo-verl", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)

    train = commands.add_parser("train", help="one training run")
    train.add_argument("overrides", nargs=argparse.REMAINDER, help="Hydra overrides, e.g. algorithm=gtpo_v1 scale=cpu")
    train.set_defaults(run=_train)

    config = commands.add_parser("config", help="print the resolved configuration of a run")
    config.add_argument("overrides", nargs=argparse.REMAINDER, help="Hydra overrides, as for train")
    config.set_defaults(run=_config)

    preflight = commands.add_parser("preflight", help="check machine, cluster, model and data before a run")
    preflight.add_argument("--dry-run", action="store_true", help="contact nothing; show what cannot be known in grey")
    preflight.add_argument("--gpu-memory", type=float, metavar="GIB", help="memory of a GPU, where no node tells")
    preflight.add_argument("overrides", nargs="*", help="Hydra overrides, as for train")
    preflight.set_defaults(run=_preflight)

    quickstart = commands.add_parser("quickstart", help="DAPO and GTPO v1 on the same model and task, and a figure")
    quickstart.add_argument("overrides", nargs="*", help="Hydra overrides for both runs, e.g. model=smollm2")
    quickstart.add_argument("--algorithms", default="dapo,gtpo_v1", help="presets of configs/algorithm, by commas")
    quickstart.set_defaults(run=_quickstart)

    prepare = commands.add_parser("prepare", help="make a task's model and data, or find them in the cache")
    prepare.add_argument("task", choices=tasks.TASKS)
    prepare.add_argument("--cache-dir", default=".cache/gtpo-verl")
    prepare.set_defaults(run=_prepare)

    data = commands.add_parser("data", help="fetch published data sets, or make some of reasoning-gym, in verl's form")
    data.add_argument(
        "names", nargs="+", metavar="NAME", help="dapo-math-17k, aime24, aime25, math500, reasoning-gym:<task>"
    )
    data.add_argument("--output", default="data", help="folder for <name>.parquet and <name>.manifest.json")
    data.add_argument(
        "--from", dest="place", help="instead of the hub: a file, a folder, a file's URL, or a hub mirror"
    )
    data.add_argument("--revision", help="branch, tag or commit of the hub's repository; main by default")
    data.add_argument("--rows", type=int, help="training rows of a reasoning-gym task; 2048 by default")
    data.add_argument("--validation-rows", type=int, help="validation rows of one; 128 by default")
    data.add_argument("--seed", type=int, help="of a reasoning-gym task; 0 by default")
    data.add_argument("--cache-dir", default=".cache/gtpo-verl", help="where downloads are kept")
    data.set_defaults(run=_data)

    report = commands.add_parser("report", help="figures, tables and page of finished or running runs")
    report.add_argument(
        "runs",
        nargs="+",
        help="run folders, metrics files (verl's, tensorboard's, wandb's history in CSV or parquet), folders of these",
    )
    report.add_argument("--output", default="report", help="folder for figures (PNG, SVG), report.html and report.json")
    report.add_argument(
        "--sources", nargs="+", default=[], help="data sources that accuracies are means over, if not all"
    )
    report.set_defaults(run=_report)

    inspect = commands.add_parser("inspect", help="a page that shows the credit of each token, from a run's token dump")
    # `options.run` is what a command does.
    inspect.add_argument("folder", metavar="RUN", help="a run's folder, or one of dumps (gtpo_verl.token_dump_dir)")
    inspect.add_argument("--step", type=int, action="append", default=[], help="this one alone; can be repeated")
    inspect.add_argument("--prompt", metavar="TEXT", help="only groups whose prompt contains TEXT")
    inspect.add_argument("--groups", type=int, default=8, help="the most groups of a step; 8 by default")
    inspect.add_argument("-o", "--output", default="inspect.html", help="the page to write; inspect.html by default")
    inspect.set_defaults(run=_inspect)

    convert = commands.add_parser("convert", help="a checkpoint's actor as a Hugging Face model, in bfloat16")
    convert.add_argument("checkpoint", help="checkpoints/global_step_N, or a run's folder for its latest")
    convert.add_argument("output", help="folder to write, which must not exist")
    convert.set_defaults(run=_convert)

    _add_eval(commands)

    hold_to_terminal()
    options = parser.parse_args(arguments)
    os.environ.update({**cache_variables(), **direct_loopback()})
    return _ended(lambda: options.run(options))


def _ended(command: Callable[[], int]) -> int:
    """The command's exit code; 1 where its output cannot be written, which is said once."""
    problem = None
    try:
        code = command()
    except BrokenPipeError:  # whoever read it has gone, as `head` does
        code = 1
    except OSError as error:
        code, problem = 1, str(error)
    unwritten = end_output()
    if unwritten is not None and not code:
        code, problem = 1, unwritten
    if problem is not None:
        print(f"error: {problem}", file=sys.stderr)
    return code


def _add_eval(commands: Any) -> None:
    evaluate = commands.add_parser("eval", help="mean@n, pass@k and majority@k of models on held-out problems, by vLLM")
    evaluate.add_argument(
        "models",
        nargs="+",
        metavar="MODEL_OR_RUN",
        help="Hugging Face folder, hub name, run's folder (its last checkpoint), RUN@STEP; LABEL= may stand before",
    )
    evaluate.add_argument(
        "--data",
        nargs="+",
        required=True,
        help="data sets of `gtpo-verl data`, or parquet, JSON or JSON lines in verl's form or with problem and answer",
    )
    evaluate.add_argument("--n", type=int, default=32, help="samples of each problem; 32 by default")
    evaluate.add_argument("--k", type=int, nargs="+", help="of pass@k and maj@k; 1, 2, 4, ... and n by default")
    evaluate.add_argument("--out", help="folder of responses and summary.json; evals/<data> by default")
    sampling = evaluate.add_argument_group("sampling", "as a run validates; without one temperature 1, top-p 1")
    sampling.add_argument("--temperature", type=float)
    sampling.add_argument("--top-p", type=float)
    sampling.add_argument("--top-k", type=int)
    sampling.add_argument("--max-tokens", type=int, help="of a response; at most 20480 by default")
    sampling.add_argument("--seed", type=int, help="0 by default")
    sampling.add_argument("--dtype", help="auto, bfloat16, float16 or float32")
    sampling.add_argument("--template", help="prompt with {problem} for files with problem and answer, or its file")
    sampling.add_argument("--chat-template", help="file with a chat template for all models")
    evaluate.add_argument("--reward", help="PATH or PATH:NAME of the reward function; a run's own by default")
    evaluate.add_argument("--gpus", type=int, help="how many; all by default")
    evaluate.add_argument("--tensor-parallel", type=int, default=1, help="GPUs of one engine; 1 by default")
    evaluate.add_argument("--gpu-memory", type=float, default=0.9, help="share that vLLM takes; 0.9 by default")
    evaluate.add_argument("--data-dir", default="data", help="where data sets are found, or made")
    evaluate.add_argument("--cache-dir", default=".cache/gtpo-verl", help="where checkpoints are converted")
    evaluate.set_defaults(run=_eval)


def _train(options: argparse.Namespace) -> int:
    from gtpo_verl.launch.terminal import train_with_progress

    code, _ = train_with_progress(options.overrides)
    return code


def _config(options: argparse.Namespace) -> int:
    from gtpo_verl.configuration.composition import compose_config, to_yaml

    try:
        print(to_yaml(compose_config(options.overrides)), end="")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _preflight(options: argparse.Namespace) -> int:
    from gtpo_verl.preflight.command import preflight

    size = None if options.gpu_memory is None else int(options.gpu_memory * 2**30)
    return preflight(options.overrides, options.dry_run, size)


def _quickstart(options: argparse.Namespace) -> int:
    from gtpo_verl.launch.quickstart import quickstart

    return quickstart(options.algorithms.split(","), options.overrides)


def _prepare(options: argparse.Namespace) -> int:
    from pathlib import Path

    prepared = tasks.prepare(options.task, Path(options.cache_dir))
    print(f"model {prepared.model}\ntrain {prepared.train}\nval   {prepared.val}")
    return 0


def _data(options: argparse.Namespace) -> int:
    from pathlib import Path

    from gtpo_verl.data.command import Request, main

    request = Request(
        names=options.names,
        output=Path(options.output),
        place=options.place,
        revision=options.revision,
        rows=options.rows,
        validation_rows=options.validation_rows,
        seed=options.seed,
        cache_dir=Path(options.cache_dir),
    )
    return main(request)


def _report(options: argparse.Namespace) -> int:
    from pathlib import Path

    from gtpo_verl import report
    from gtpo_verl.report.metrics_log import MetricsError

    try:
        print(report.write_report([Path(run) for run in options.runs], Path(options.output), sources=options.sources))
    except (MetricsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _inspect(options: argparse.Namespace) -> int:
    from pathlib import Path

    from gtpo_verl.inspect.command import inspect
    from gtpo_verl.inspect.responses import InspectError

    try:
        shown = inspect(Path(options.folder), Path(options.output), options.step, options.prompt, options.groups)
    except (InspectError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if shown.omitted:
        print(f"left out, to keep the page small: steps {', '.join(map(str, shown.omitted))}", file=sys.stderr)
    print(shown.path)
    return 0


def _convert(options: argparse.Namespace) -> int:
    from pathlib import Path

    from gtpo_verl.run_folder.conversion import convert

    # As Ctrl-C does: what is half-written is removed on the way out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        print(convert(Path(options.checkpoint), Path(options.output)))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _eval(options: argparse.Namespace) -> int:
    from pathlib import Path

    from gtpo_verl.evaluation.command import Request, main

    # As Ctrl-C does: what was sampled is written, and the engines end.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    chosen = ("temperature", "top_p", "top_k", "max_tokens", "seed", "dtype")
    request = Request(
        models=options.models,
        data=options.data,
        n=options.n,
        ks=options.k,
        out=None if options.out is None else Path(options.out),
        template=options.template,
        chat_template=None if options.chat_template is None else Path(options.chat_template),
        reward=options.reward,
        sampling={name: getattr(options, name) for name in chosen},
        gpus=options.gpus,
        tensor_parallel=options.tensor_parallel,
        gpu_memory=options.gpu_memory,
        data_dir=Path(options.data_dir),
        cache_dir=Path(options.cache_dir),
    )
    return main(request)


if __name__ == "__main__":
    sys.exit(main())
