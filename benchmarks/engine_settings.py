"""What each setting of the log-prob pass and the update gives in seconds and costs in memory; no Ray, no vLLM.

    python benchmarks/engine_settings.py --csv out.csv          # one GPU with flash-attn's interface
    VERL_PLATFORM=cpu python benchmarks/engine_settings.py --csv out.csv --attention sdpa --layers 2 --hidden 64 \\
        --heads 2 --kv-heads 1 --intermediate 128 --vocabulary 512 --prompts 2 1 --lengths 20 60 --budgets 1024 512

Our engine with a Llama of SmolLM2-135M's shape and random weights, as in engine_step.py. From one way to compute, which
is the first row of each length, one setting at a time is changed. Memory is what a pass takes beyond weights and
optimizer state.
"""

import argparse
import csv
import datetime
import functools
import tempfile
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.engine_step import (
    GTPO,
    OBJECTS,
    OURS,
    TEXTS,
    Batch,
    Measurement,
    Method,
    make_engine,
    say,
    set_up,
    write_model,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=[160, 2048], help="of responses")
    parser.add_argument(
        "--prompts", type=int, nargs="+", default=[64, 8], help="with 16 responses each, for each length"
    )
    parser.add_argument("--budgets", type=int, nargs="+", default=[65536, 32768, 16384], help="tokens of the update")
    parser.add_argument("--log-prob-budget", type=int, default=131072)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--settings", nargs="+", default=[""], help="rows whose names contain one of these words")
    parser.add_argument("--attention", default="flash_attention_2")
    parser.add_argument("--no-compile", action="store_true")
    for name, value in {
        "vocabulary": 49152,
        "hidden": 576,
        "intermediate": 1536,
        "layers": 30,
        "heads": 9,
        "kv-heads": 3,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    options.mini_batch = 512
    with tempfile.TemporaryDirectory() as folder:
        set_up(folder)
        write_model(folder, options)
        with open(options.csv, "w", newline="", encoding="utf-8") as file:
            measure(folder, options, file)
        torch.distributed.destroy_process_group()


def measure(folder: str, options: argparse.Namespace, file: Any) -> None:
    columns = ["response_tokens", "responses", "tokens", "setting", "log_prob_pass", "log_prob_gib", "update"]
    columns += ["update_gib", "slowest_update", "largest_difference", "repeats", "card", "date"]
    table = csv.DictWriter(file, columns)
    table.writeheader()
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    first, *budgets = options.budgets
    ways: list[tuple[str, dict[str, bool], dict[str, int], bool]] = [
        (f"update {first:,} tokens, no checkpointing, told spans", {"checkpointing": False}, {}, True),
        *((f"update {tokens:,} tokens", {"checkpointing": False}, {"update": tokens}, True) for tokens in budgets),
        (f"log-prob pass {first:,} tokens", {"checkpointing": False}, {"log_prob": first}, True),
        ("flash attention looks for the spans", {"checkpointing": False}, {}, False),
        ("gradient checkpointing", {"checkpointing": True}, {}, True),
        ("reshard_after_forward=false", {"checkpointing": False, "reshard": False}, {}, True),
        ("FSDP with the model as one unit", {"checkpointing": False, "layers_apart": False}, {}, True),
    ]
    engine: Any = None
    made = None
    batches = [
        Batch(prompts, options.vocabulary, (length, length))
        for prompts, length in zip(options.prompts, options.lengths, strict=True)
    ]
    for setting, kind, tokens, told in ways:
        if not any(word in setting for word in options.settings):
            continue
        if kind != made:
            engine = None  # frees the one before
            engine, made = make_engine(folder, True, options, **kind), kind
        engine._spans_are_taken = told and options.attention.startswith("flash")
        for batch in batches:
            options.tokens = [tokens.get("log_prob", options.log_prob_budget), tokens.get("update", first)]
            method = Method(OURS, engine, batch, options)
            row: dict[str, Any] = {"response_tokens": len(batch.responses[0]), "responses": len(batch)}
            row |= {"tokens": batch.tokens, "setting": setting, "repeats": options.repeats}
            if not told:  # the same log-probabilities, whoever finds the spans
                looked_for = method.log_probs()["log_probs"]
                engine._spans_are_taken = True
                row["largest_difference"] = (method.log_probs()["log_probs"] - looked_for).abs().max().item()
                engine._spans_are_taken = False
            try:
                row |= times(method, batch, options.repeats)
            except torch.cuda.OutOfMemoryError:
                row["update"] = "out of memory"
                torch.cuda.empty_cache()
            say("  ".join(str(value) for value in row.values()))
            table.writerow({**row, "card": card, "date": datetime.date.today().isoformat()})
            file.flush()


def times(method: Method, batch: Batch, repeats: int) -> dict[str, float]:
    """Medians and largest values; the first run of each is left out."""
    old = {name: batch.of_responses(values) for name, values in method.log_probs().items()}
    values = {"old_log_probs": old["log_probs"], "advantages": torch.randn(len(old["log_probs"]))}

    def lean(make: Callable[[], Any]) -> Callable[[], Any]:
        """As the recipe's trainer has it fetched: no objects (`verl_plugin.transfer.for_forward`)."""
        return lambda: make().exclude(*OBJECTS, *TEXTS)

    # Without the time that the batch takes to be put together, which in a run is the rollouts'.
    passes = Measurement(method.pass_over, prepare=lean(method.for_pass))
    updates = Measurement(
        functools.partial(method.update_with, GTPO), prepare=lean(functools.partial(method.for_update, values))
    )
    method.update(GTPO, values)
    for _ in range(repeats):
        passes.measure()
        updates.measure()
    return {
        "log_prob_pass": round(passes.median, 3),
        "log_prob_gib": round(passes.extra_gib, 2),
        "update": round(updates.median, 3),
        "update_gib": round(updates.extra_gib, 2),
        "slowest_update": round(max(updates.seconds), 3),
    }


if __name__ == "__main__":
    main()
