"""The big model's inputs, exact pass, configuration and tables, on a tiny Qwen2 and constructed runs."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import psutil
import pytest
import torch
import yaml
from omegaconf import OmegaConf

from benchmarks.big_model import __main__ as big_model
from benchmarks.big_model import exact, inputs, machine, settings, tables
from gtpo_verl.configuration.checks import check_config
from gtpo_verl.configuration.composition import changes, compose_config, to_yaml
from gtpo_verl.inspect import dump
from gtpo_verl.inspect.responses import ENTROPY, LOG_PROB, ROLLOUT_LOG_PROB, Response, Step
from gtpo_verl.preflight import budget
from gtpo_verl.preflight.architecture import published_shape
from gtpo_verl.preflight.findings import Status
from gtpo_verl.preflight.memory import GIB
from gtpo_verl.preflight.model_files import model_problems
from gtpo_verl.preflight.sizes import check_sizes, check_values

TINY = {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


def tiny(folder: Path, tied: bool = False, fields: dict | None = None, **options) -> Path:
    inputs.save_model(folder, {**TINY, "tie_word_embeddings": tied, **(fields or {})}, **options)
    return folder


# ---- the model's folder ----


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_what_was_written(tmp_path, tied):
    from transformers import AutoTokenizer, Qwen2ForCausalLM

    folder = tiny(tmp_path / "model", tied, shard_bytes=100_000)
    model, report = Qwen2ForCausalLM.from_pretrained(folder, output_loading_info=True, dtype=torch.float32)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == TINY["vocab_size"]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "é?"}], add_generation_prompt=True)


def test_a_llama_has_the_fields_that_were_asked_for(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    rope = {"rope_type": "default", "rope_theta": 100_000.0}
    folder = tiny(tmp_path / "model", tied=True, family="llama", fields={"rope_parameters": rope, "rms_norm_eps": 1e-5})
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(model) is LlamaForCausalLM
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert (written["architectures"], written["model_type"]) == (["LlamaForCausalLM"], "llama")
    expected = {**TINY, "rope_parameters": rope, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "eos_token_id": 2}
    assert {name: getattr(model.config, name) for name in expected} == expected
    assert model.get_input_embeddings().weight.shape == (1000, 64)
    assert len(model.model.layers) == 3
    assert not [name for name, _ in model.named_parameters() if name.endswith("bias")]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "é?"}], add_generation_prompt=True)
    assert tokenizer.decode(prompt["input_ids"]) == "<|im_start|>user\né?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("family", ["qwen2", "llama"])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_have_the_wanted_spread(tmp_path, tied, family):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny(tmp_path / "model", tied, family=family), dtype=torch.float32)
    tokens = torch.randint(0, 1000, (4, 100), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = model(tokens).logits
    assert logits.std().item() == pytest.approx(inputs.SPREAD, rel=0.05)
    first, last = logits[0, 10], logits[0, 90]
    assert torch.corrcoef(torch.stack([first, last]))[0, 1] < 0.95  # positions differ


def test_shards_and_index_are_one_whole_model(tmp_path):
    folder = tiny(tmp_path / "model", shard_bytes=100_000)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {path.name for path in folder.glob("*.safetensors")}
    assert len(files) > 2
    assert set(index["weight_map"].values()) == files
    assert index["metadata"]["total_size"] == sum(
        2 * exact.ModelFolder(folder)(name).numel() for name in index["weight_map"]
    )
    assert model_problems(folder) == []


def test_the_same_seed_gives_the_same_weights_however_they_are_split(tmp_path):
    one, other = tiny(tmp_path / "a", shard_bytes=50_000, threads=3), tiny(tmp_path / "b", threads=1)
    another = tiny(tmp_path / "c", seed=2)
    first, second, third = (exact.ModelFolder(folder) for folder in (one, other, another))
    assert sorted(first.names()) == sorted(second.names())
    assert all(torch.equal(first(name), second(name)) for name in first.names())
    assert not torch.equal(first("lm_head.weight"), third("lm_head.weight"))
    query, key = (first(f"model.layers.0.mlp.{name}_proj.weight") for name in ("gate", "up"))
    assert not torch.equal(query, key)


def test_an_interrupted_writing_leaves_nothing(tmp_path, monkeypatch):
    import safetensors.torch

    real = safetensors.torch.save_file

    def full(tensors, path, **options):
        real(tensors, path, **options)
        raise OSError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        tiny(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writing_left_is_taken_away(tmp_path):
    (tmp_path / "model.part").mkdir()
    (tmp_path / "model.part" / "model-00009-of-00009.safetensors").write_bytes(b"half")
    assert model_problems(tiny(tmp_path / "model")) == []
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_too_small_a_disk_is_named_before_anything_is_written(tmp_path, monkeypatch):
    from types import SimpleNamespace

    monkeypatch.setattr(inputs.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(OSError, match=r"model: the weights take 0\.\d GB, 0\.0 GB are free"):
        tiny(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_refuses_a_folder_that_is_there_and_a_vocabulary_without_bytes(tmp_path):
    with pytest.raises(FileExistsError, match="exists already"):
        tiny(tmp_path)
    with pytest.raises(ValueError, match="vocab_size=100"):
        inputs.save_model(tmp_path / "model", {**TINY, "vocab_size": 100})


def test_32b_has_the_published_number_of_parameters():
    from transformers import Qwen2Config

    from gtpo_verl.preflight.architecture import shape_of

    assert shape_of(Qwen2Config(**inputs.SHAPES["32b"])).parameters == 32_763_876_352
    assert shape_of(Qwen2Config(**inputs.SHAPES["7b"])).parameters == 7_615_616_512


@pytest.fixture(scope="module")
def prompts_and_reward(tmp_path_factory) -> tuple[list[str], Callable[[str, str], float]]:
    """Ground truths, one a prompt, and whether a text is right after one: 1 or 0."""
    folder = tmp_path_factory.mktemp("data")
    inputs.save_data(folder, prompts=1000)
    names: dict = {}
    exec((folder / "reward.py").read_text(encoding="utf-8"), names)
    rows = pd.read_parquet(folder / "train.parquet")
    prompts = [one["ground_truth"] for one in rows["reward_model"]]
    assert prompts == [one[0]["content"] for one in rows["prompt"]]

    def acc(prompt: str, text: str) -> float:
        result = names["compute_score"](data_source="words", solution_str=text, ground_truth=prompt, extra_info={})
        assert result["score"] == result["acc"]
        return result["acc"]

    return prompts, acc


def test_half_of_all_texts_are_right(prompts_and_reward):
    prompts, acc = prompts_and_reward
    random = Random(3)
    texts = ["".join(f"w{random.randrange(49_152)}" for _ in range(160)) for _ in prompts]
    assert 0.45 < np.mean([acc(*pair) for pair in zip(prompts, texts, strict=True)]) < 0.55
    assert acc("number 7", "w1") == float(zlib.crc32(b"number 7w1") % 2 == 0)


@pytest.mark.parametrize("text", ["", "w300", "w300" * 160, "é\n"])
def test_no_text_is_right_after_more_than_half_of_the_prompts(prompts_and_reward, text):
    prompts, acc = prompts_and_reward
    assert 0.45 < np.mean([acc(prompt, text) for prompt in prompts]) < 0.55


def test_no_token_decides(prompts_and_reward):
    """Neither the first nor the last, whatever the rest is; nor the prompt."""
    prompts, acc = prompts_and_reward
    rests = [f"w{number}w{number * 7}" for number in range(300, 400)]
    for token in ["w300", "w49151", "a", "�", "\n"]:
        for prompt in prompts[:5]:
            assert 0.2 < np.mean([acc(prompt, token + rest) for rest in rests]) < 0.8
            assert 0.2 < np.mean([acc(prompt, rest + token) for rest in rests]) < 0.8


# ---- the exact pass ----


def sequences(count=3):
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randint(0, 1000, (4 + n,), generator=generator), torch.randint(0, 1000, (30 + n,), generator=generator))
        for n in range(count)
    ]


@pytest.mark.parametrize("tied", [False, True])
def test_layer_by_layer_is_the_whole_model_in_fp32(tmp_path, monkeypatch, tied):
    from transformers import AutoConfig, Qwen2ForCausalLM

    folder = tiny(tmp_path / "model", tied)
    monkeypatch.setattr(exact, "_ROWS", 7)  # several blocks of logits
    found = exact.log_probs_and_entropies(AutoConfig.from_pretrained(folder), exact.ModelFolder(folder), sequences())
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    for (prompt, response), (log_p, entropy) in zip(sequences(), found, strict=True):
        with torch.no_grad():
            logits = model(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
        expected = torch.distributions.Categorical(logits=logits)
        torch.testing.assert_close(log_p, expected.log_prob(response), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(entropy, expected.entropy(), atol=1e-4, rtol=1e-4)


def test_no_more_than_a_layer_is_held(tmp_path):
    """Each tensor is asked for once, and gone before the next layer's are."""
    import weakref

    from transformers import AutoConfig

    folder = tiny(tmp_path / "model")
    read, alive, most = exact.ModelFolder(folder), [], 0

    def watched(name):
        nonlocal most
        tensor = read(name).float()  # as `to` would return it: the tensor that the module gets
        alive.append((name, weakref.ref(tensor)))
        most = max(most, len({name.split(".")[2] for name, ref in alive if ref() is not None and ".layers." in name}))
        return tensor

    exact.log_probs_and_entropies(AutoConfig.from_pretrained(folder), watched, sequences(1))
    assert sorted(name for name, _ in alive) == sorted(read.names())
    assert most == 1


# ---- checkpoints ----


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> tuple[Path, Path]:
    """A model, and the actor that three ranks saved of it with other weights in 10 rows and one more place."""
    folder = tmp_path_factory.mktemp("saved")
    model, actor = tiny(folder / "model"), folder / "global_step_3/actor"
    script = Path(__file__).with_name("fsdp_shards.py")
    result = subprocess.run([sys.executable, script, model, actor, "3"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return model, actor


def test_the_changed_share_is_counted_over_all_ranks(saved):
    model, actor = saved
    before, after = exact.ModelFolder(model), exact.Checkpoint(actor)
    assert sorted(before.names()) == sorted(after.names())
    assert all(before(name).shape == after(name).shape for name in before.names())
    total = sum(before(name).numel() for name in before.names())
    assert exact.share_changed(before, after) == (10 * TINY["hidden_size"] + 1) / total


def test_the_exact_pass_reads_a_checkpoint(saved):
    from transformers import AutoConfig, Qwen2ForCausalLM

    model, actor = saved
    (found,) = exact.log_probs_and_entropies(AutoConfig.from_pretrained(model), exact.Checkpoint(actor), sequences(1))
    changed = Qwen2ForCausalLM.from_pretrained(model, dtype=torch.float32)
    changed.load_state_dict({name: exact.Checkpoint(actor)(name).float() for name in exact.Checkpoint(actor).names()})
    ((prompt, response),) = sequences(1)
    with torch.no_grad():
        logits = changed(torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
    torch.testing.assert_close(
        found[0], torch.distributions.Categorical(logits=logits).log_prob(response), atol=1e-4, rtol=1e-4
    )


# ---- the runs' configuration ----


def composed(job, gpus, length=1024, extra=()):
    shared = [f"algorithm={job.algorithm}", "model=dapo_math", "scale=32b_16x8"]
    return compose_config([*shared, *settings.overrides(job, gpus, length, Path("/data/it's here/r.py"), list(extra))])


@pytest.mark.parametrize(("gpus", "length"), [(4, 1024), (4, 2048), (8, 4096)])
@pytest.mark.parametrize("name", settings.JOBS)
def test_overrides_pass_every_check_that_needs_no_card(name, gpus, length):
    config = composed(settings.JOBS[name], gpus, length)
    assert check_config(config) == []
    assert check_values(config) == []
    assert [finding for finding in check_sizes(config, 131_072) if finding.status is not Status.OK] == []
    shape = published_shape(config.gtpo_verl.architecture)
    card = 140 * GIB
    findings = [*budget.check_gpu_memory(config, shape, card, "node")]
    findings += [budget.check_host_memory(config, shape, 512 * GIB, "node")]
    findings += [budget.check_checkpoint_space(config, shape, 170 * 10**9, "node")]  # beside the model
    assert [finding for finding in findings if finding.status is not Status.OK] == []
    assert config.reward.custom_reward_function.path == "/data/it's here/r.py"


def test_both_algorithms_take_the_same_steps():
    """They differ in method and engine alone."""
    gtpo, dapo = (yaml.safe_load(to_yaml(composed(settings.JOBS[name], 4))) for name in ("gtpo", "dapo"))
    assert gtpo["data"] == dapo["data"]
    assert gtpo["reward"] == dapo["reward"]
    rollouts = [run["actor_rollout_ref"]["rollout"] for run in (gtpo, dapo)]
    assert {key for key in rollouts[0] if rollouts[0][key] != rollouts[1].get(key)} == {"trace"}  # names the run
    differing = {key for key in gtpo["gtpo_verl"] if gtpo["gtpo_verl"][key] != dapo["gtpo_verl"][key]}
    assert differing == {"fused_entropy", "fast_rollout", "run_dir", "token_dump_dir"}
    actors = [run["actor_rollout_ref"]["actor"] for run in (gtpo, dapo)]
    differing = {key for key in actors[0] if actors[0][key] != actors[1].get(key)}
    assert differing == {"policy_loss", "clip_ratio_c"}


def test_the_resumed_run_is_the_same_but_for_its_length():
    first, second = (to_yaml(composed(settings.JOBS[name], 4)) for name in ("gtpo", "resume"))
    differing = {change.partition(":")[0] for change in changes(first, second)}
    assert differing == {"trainer.save_freq", "trainer.total_training_steps"}
    job = settings.JOBS["gtpo"]
    assert f"trainer.save_freq={settings.SAVED_STEP}" in job.overrides
    assert f"trainer.total_training_steps={settings.RESUMED_STEP}" in settings.JOBS["resume"].overrides


def test_every_override_changes_the_preset():
    """What so few GPUs do not force is not in the list."""
    job = settings.JOBS["gtpo"]
    before = yaml.safe_load(to_yaml(compose_config(["algorithm=gtpo_v2", "model=dapo_math", "scale=32b_16x8"])))
    for gpus in (4, 8):
        after = yaml.safe_load(to_yaml(composed(job, gpus)))
        for override in settings.forced(gpus, 1024):
            key = override.partition("=")[0]
            old, new = (OmegaConf.select(OmegaConf.create(config), key) for config in (before, after))
            assert old != new, override


# ---- memory by phase ----


def samples(*rows):
    return [machine.Sample(float(at), host, disk, gpus) for at, host, disk, gpus in rows]


MARKS = [(10.0, 1, "rollout"), (20.0, 1, "log-probabilities"), (30.0, 1, "update"), (40.0, 1, "save")]
MARKS += [(45.0, 1, "between steps"), (46.0, 2, "rollout"), (56.0, 2, "update")]


def test_samples_belong_to_the_phase_that_has_begun():
    found = machine.by_phase(
        samples(
            (5, 30, 100, (1, 2)),
            (10, 31, 100, (70, 69)),
            (19.9, 30, 100, (71, 60)),
            (20, 30, 100, (50, 50)),
            (35, 30, 100, (90, 95)),
            (41, 40, 161, (46, 46)),
            (47, 30, 161, (72, 71)),
            (60, 30, 161, (93, 91)),
        ),
        MARKS,
    )
    assert list(found) == [
        (0, machine.START),
        (1, "rollout"),
        (1, "log-probabilities"),
        (1, "update"),
        (1, "save"),
        (2, "rollout"),
        (2, "update"),
    ]
    assert machine.peaks(found) == {
        machine.START: {"gpu": 2, "host": 30, "disk": 100},
        "rollout": {"gpu": 72, "host": 31, "disk": 161},
        "log-probabilities": {"gpu": 50, "host": 30, "disk": 100},
        "update": {"gpu": 95, "host": 30, "disk": 161},
        "save": {"gpu": 46, "host": 40, "disk": 161},
    }
    assert machine.seconds(MARKS, "save") == {1: 5.0}


def test_phases_of_another_job_in_the_same_log_are_not_this_ones():
    later = [(at + 1000, step + 2, phase) for at, step, phase in MARKS]
    found = machine.by_phase(samples((1001, 1, 1, ()), (1012, 1, 1, ()), (1070, 1, 1, ())), [*MARKS, *later])
    assert list(found) == [(0, machine.START), (3, "rollout"), (4, "update")]
    assert machine.by_phase([], MARKS) == {}


def test_the_sampler_writes_what_it_reads_back(tmp_path):
    path = tmp_path / "memory" / "gtpo.csv"
    began = time.time()
    with machine.Sampler(path, tmp_path, interval=0.01):
        deadline = time.monotonic() + 60
        while (len(path.read_text().splitlines()) if path.exists() else 0) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
    found = machine.read_samples(path)
    assert len(found) >= 3
    assert began - 1 <= found[0].time <= found[-1].time <= time.time() + 1
    assert all(0 < sample.host < psutil.virtual_memory().total / GIB and sample.disk > 0 for sample in found)
    path.write_text(path.read_text() + "1764")  # cut off
    assert machine.read_samples(path) == found


def test_the_sampler_reads_nvidia_smi(tmp_path, monkeypatch):
    """A program of that name that answers as NVIDIA's does."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\ncase "$1" in *name*) echo "NVIDIA H200";; *) echo "1024, 143771"; echo "2048, 143771";; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert [used for used, _ in machine.gpu_memory()] == [1.0, 2.0]
    assert machine.gpu_memory()[0][1] == pytest.approx(140.4, abs=0.01)
    assert machine.gpu_name() == "NVIDIA H200"
    with machine.Sampler(tmp_path / "m.csv", tmp_path, interval=0.01):
        deadline = time.monotonic() + 60
        while not (tmp_path / "m.csv").exists() or not (tmp_path / "m.csv").read_text().count("\n") > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert machine.read_samples(tmp_path / "m.csv")[0].gpus == (1.0, 2.0)


def test_more_memory_than_a_control_group_allows_is_refused(tmp_path):
    limit = tmp_path / "memory.max"
    limit.write_text(f"{20 * GIB}\n")
    machine.check_growth(20, limit)
    with pytest.raises(ValueError, match=r"--grow-memory 21: .*memory.max allows 20 GiB"):
        machine.check_growth(21, limit)
    limit.write_text("max\n")
    machine.check_growth(10_000, limit)


# ---- the table ----

SECONDS = {"gen": 60.0, "old_log_prob": 15.0, "adv": 0.5, "update_actor": 55.0, "update_weights": 5.0, "step": 140.0}


def recorded(out: Path) -> Path:
    """The folder that stages would leave: GTPO with a resume, and DAPO, whose log-prob pass takes 2 s longer."""
    for algorithm, jobs, slower in (("gtpo_v2", {"gtpo": (1, 2, 3), "resume": (4,)}, 0), ("dapo", {"dapo": (1, 2)}, 2)):
        folder = out / "runs" / algorithm
        folder.mkdir(parents=True)
        log, lines, now = "", [], 1000.0
        for name, steps in jobs.items():
            rows = [(now, 60.0, 100.0, 1.0)]
            now += 300
            for step in steps:
                for phase, used in (
                    ("rollout", 118.0),
                    ("log-probabilities", 60.0),
                    ("update", 95.0),
                    ("weights", 75.0),
                ):
                    log += f"(TaskRunner pid=1) step {step}, {phase}, since {now:.2f}\n"
                    rows += [(now + 1, 62.0, 100.0, used), (now + 9, 61.0, 100.0, used + step / 10)]
                    now += 10
                data = {f"timing_s/{key}": value + step / 10 for key, value in SECONDS.items()}
                data["timing_s/old_log_prob"] += slower
                data |= {"perf/total_num_tokens": 270_000, "actor/perf/max_memory_allocated_gb": 88.0}
                data |= {"training/rollout_probs_diff_mean": 1e-3, "perf/mfu/actor": 0.4}
                lines.append(json.dumps({"step": step, "data": data}))
                if (name, step) == ("gtpo", 3):
                    log += f"step 3, save, since {now:.2f}\nstep 3, between steps, since {now + 42:.2f}\n"
                    rows.append((now + 30, 70.0, 161.0, 46.0))
                    now += 50
            rows.append((now, 61.0, 161.0 if name == "gtpo" else 100.0, 1.0))
            now += 500
            path = out / "memory" / f"{name}.csv"
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                "time,host_gib,disk_gib,gpu0_gib,gpu1_gib\n"
                + "".join(f"{at},{host},{disk},{used},{used - 1}\n" for at, host, disk, used in rows)
            )
        (folder / "train.log").write_text(log)
        (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
        estimate = {"rollout": 120.0, "log-prob": 57.5, "update": 93.4, "host": 61.0, "disk": 61.0}
        facts = {"card": "NVIDIA H200", "date": "2026-11-29", "estimate": estimate}
        (out / f"machine_{algorithm}.json").write_text(json.dumps(facts))
    check = [{"algorithm": "gtpo_v2", "step": 3, "weights": "checkpoint", "value": tables.CHANGED, "mean": 0.151}]
    check += [
        {"algorithm": "dapo", "step": 1, "weights": "model folder", "value": "entropy", "mean": 0.03, "largest": 0.4}
    ]
    for row in check:
        (out / f"check_{row['algorithm']}.json").write_text(json.dumps([row]))
    return out


def test_every_step_of_every_run_is_a_row(tmp_path):
    out = recorded(tmp_path)
    rows = [row for run in tables.runs_of(out) for row in tables.step_rows(run, 4, "NVIDIA H200", "2026-11-29")]
    assert [(row["algorithm"], row["engine"], row["step"], row["first_of_job"]) for row in rows] == [
        ("gtpo_v2", "gtpo_verl", 1, True),
        ("gtpo_v2", "gtpo_verl", 2, False),
        ("gtpo_v2", "gtpo_verl", 3, False),
        ("gtpo_v2", "gtpo_verl", 4, True),
        ("dapo", "verl", 1, True),
        ("dapo", "verl", 2, False),
    ]
    third = rows[2]
    assert third["save"] == 42.0
    assert (rows[0]["save"], rows[4]["save"]) == ("", "")
    assert third["rollout_gib"] == "118.3"  # the fullest card, second sample
    assert third["save_gib"] == "46.0"
    assert third["tokens_per_second_per_gpu"] == pytest.approx(270_000 / 140.3 / 4, abs=0.1)


def test_peaks_stand_beside_the_estimate(tmp_path):
    gtpo, dapo = tables.runs_of(recorded(tmp_path))
    rows = {row["phase"]: row for row in tables.memory_rows(gtpo, {"rollout": 120.0, "log-prob": 57.5})}
    assert (rows["rollout"]["gpu_gib"], rows["rollout"]["gpu_estimate_gib"]) == (118.4, 120.0)
    assert (rows["log-probabilities"]["gpu_gib"], rows["log-probabilities"]["gpu_estimate_gib"]) == (60.4, 57.5)
    assert rows["weights"]["gpu_estimate_gib"] == ""
    assert (rows["save"]["disk_gib"], rows["rollout"]["disk_gib"]) == (61.0, 0.0)
    assert rows["save"]["host_gib"] == 70.0
    assert "save" not in {row["phase"] for row in tables.memory_rows(dapo, {})}


def test_the_table_stage_writes_markdown_and_rows(tmp_path, capsys):
    out = recorded(tmp_path / "out")
    assert big_model.run(big_model.parse(["--stages", "table", "--out", str(out)])) == 0
    text = (out / "table.md").read_text()
    assert text in capsys.readouterr().out
    assert "| GTPO v2, our engine | 2, 3 | 270,000 | 60.2 s (60.2 to 60.3) |" in text
    assert "| GTPO v2, our engine, first of a job | 1, 4 |" in text
    assert "| DAPO | update | 95.2 | 93.4 | 62.0 | 0.0 |" in text
    assert "| GTPO v2 | 3 | checkpoint | share of weights changed | 15.10% |" in text
    # 16.0 s (median of two steps) against 17.9 s of a step of 140.2 s.
    assert "Log-probabilities, entropies and advantages: -1.4% of a step" in text
    rows = list(csv.DictReader((out / "training_step_4gpu_32b.csv").open()))
    assert len(rows) == 6
    assert {row["algorithm"] for row in rows} == {"gtpo_v2", "dapo"}
    assert (rows[0]["card"], rows[0]["date"]) == ("NVIDIA H200", "2026-11-29")
    assert list(csv.DictReader((out / "memory_4gpu_32b.csv").open()))


def test_runs_of_two_machines_make_one_table(tmp_path):
    """The folders without what is large, put into one another; neither model nor cards are needed."""
    both, one, other = (tmp_path / name for name in ("both", "one", "other"))
    for folder, missing in ((recorded(one), "dapo"), (recorded(other), "gtpo_v2")):
        shutil.rmtree(folder / "runs" / missing)
        for path in [*folder.glob(f"*_{missing}.json"), *(folder / "memory").glob("*.csv")]:
            if missing in path.name or (path.stem == "dapo") == (missing == "dapo"):
                path.unlink()
        assert big_model.run(big_model.parse(["--stages", "table", "--out", str(folder)])) == 0
        shutil.copytree(folder, both, dirs_exist_ok=True)
    assert big_model.run(big_model.parse(["--stages", "table", "--out", str(both)])) == 0
    whole = recorded(tmp_path / "whole")
    assert big_model.run(big_model.parse(["--stages", "table", "--out", str(whole)])) == 0
    assert (both / "table.md").read_text() == (whole / "table.md").read_text()


def test_a_table_of_one_run_says_nothing_of_what_entropies_cost(tmp_path):
    (gtpo, _) = tables.runs_of(recorded(tmp_path))
    assert tables.entropy_cost(tables.step_rows(gtpo, 4, None, "")) is None


# ---- the command ----

SCRIPT = Path(__file__).parents[2] / "scripts/try_32b_4gpu.sh"


def command(*arguments, cwd="/"):
    return subprocess.run([SCRIPT, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300)


def test_help_names_the_stages():
    assert subprocess.run(["bash", "-n", SCRIPT]).returncode == 0
    result = command("--help")
    assert result.returncode == 0, result.stderr
    assert all(f"\n  {stage} " in result.stdout for stage in big_model.STAGES)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--stages", "model,gpto"], "argument --stages: 'gpto' is none of model, preflight"),
        (["--gpus", "3"], "argument --gpus: invalid choice: 3"),
        (["--response-length", "0"], "argument --response-length: '0' is no whole number of at least 1"),
        (["--field", "num_hidden_layers"], "argument --field: 'num_hidden_layers' is no KEY=VALUE"),
        (["/nowhere/model"], "MODEL_FOLDER: /nowhere/model: no config.json there"),
    ],
)
def test_a_bad_argument_is_named(arguments, said, capsys):
    with pytest.raises(SystemExit) as ended:
        big_model.parse(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_stage_without_the_one_before_it_is_refused(tmp_path):
    result = command("--stages", "check", "--out", "out", cwd=tmp_path)
    assert result.returncode == 1
    assert "error: --stages check: neither gtpo nor dapo is done in" in result.stderr
    table = big_model.Table(big_model.parse(["--out", str(tmp_path / "other")]))
    for stage, needed in (("gtpo", "model"), ("resume", "gtpo"), ("dapo", "model"), ("preflight", "model")):
        with pytest.raises(ValueError, match=f"--stages {stage}: {needed} is not done"):
            table.run(stage, None)
    with pytest.raises(ValueError, match="another command works there"):
        big_model.Table(big_model.parse(["--out", str(tmp_path / "other")]))


SMALL = [f"--field={key}={value}" for key, value in TINY.items()]


def test_the_model_stage_is_done_once_and_the_folder_keeps_its_settings(tmp_path):
    first = command("--stages", "model", "--out", "out", *SMALL, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert model_problems(tmp_path / "out/model") == []
    assert (tmp_path / "out/data/train.parquet").exists()
    again = command("--stages", "model", "--out", "out", "--grow-memory", "1", *SMALL, cwd=tmp_path)
    assert "model: done before\n" in again.stdout
    assert "after filling 0 GiB" in again.stdout  # there is more already
    other = command("--stages", "model", "--out", "out", "--gpus", "8", *SMALL, cwd=tmp_path)
    assert other.returncode == 1
    assert "was begun with --gpus 4, not 8; name another" in other.stderr


def test_a_command_that_is_ended_ends_what_it_started(tmp_path):
    code = """
        import sys
        from benchmarks.big_model import __main__ as big_model
        big_model.end_in_order()
        table = big_model.Table(big_model.parse(["--out", sys.argv[1]]))
        table._call(["sh", "-c", "echo $$; exec sleep 1000"], table.out / "log", {})
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), tmp_path / "out"], stdout=subprocess.PIPE, text=True
    )
    child = psutil.Process(int(process.stdout.readline()))
    process.terminate()
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_resume_without_its_checkpoint_is_refused(tmp_path):
    table = big_model.Table(big_model.parse(["--out", str(tmp_path)]))
    (tmp_path / "done/gtpo").touch()
    with pytest.raises(ValueError, match=r"--stages resume: .*/global_step_3/actor: no such folder"):
        table.run("resume", "http://127.0.0.1:1")


def test_a_job_is_composed_as_it_is_submitted(saved, tmp_path):
    """In a folder whose name Hydra would take apart."""
    model, _ = saved
    out = tmp_path / "it's, a=1"
    table = big_model.Table(big_model.parse([str(model), "--out", str(out), "--override=data.seed=7"]))
    config = table.composed(settings.JOBS["dapo"])
    assert config.gtpo_verl.run_dir == str(out / "runs/dapo")
    assert config.gtpo_verl.token_dump_dir == str(out / "runs/dapo/tokens")
    assert config.actor_rollout_ref.model.path == str(model)
    assert (config.data.seed, config.trainer.nnodes) == (7, 1)
    sizes = table.estimate(settings.JOBS["gtpo"], 140 * GIB)
    assert {"rollout", "log-prob", "update", "host", "disk"} <= sizes.keys()
    # bf16, weights alone.
    weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    assert sizes["disk"] * GIB == pytest.approx(weights, rel=0.02)


def test_an_unknown_field_is_named(tmp_path):
    result = command("--stages", "model", "--out", "out", "--field", "layers=2", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.endswith("error: layers is no field of Qwen2Config\n")
    assert not (tmp_path / "out/done/model").exists()


# ---- the check ----


def write_dump(path: Path, weights, config, error: float) -> None:
    """A step's tokens, with log-probabilities that are off by `error` and entropies by twice as much."""
    pairs = sequences(32)
    rows = []
    for number, ((prompt, response), (log_p, entropy)) in enumerate(
        zip(pairs, exact.log_probs_and_entropies(config, weights, pairs), strict=True)
    ):
        values = {ENTROPY: entropy - 2 * error, LOG_PROB: log_p + error, ROLLOUT_LOG_PROB: log_p - 3 * error}
        rows.append(
            Response(
                uid=str(number // 16),
                prompt="?",
                right=True,
                score=1.0,
                length_penalty=None,
                tokens=np.zeros(len(response), np.int32),
                mask=np.ones(len(response), bool),
                values={name: value.numpy() for name, value in values.items()},
                reward={},
                ids=response.numpy().astype(np.int32),
                prompt_ids=prompt.numpy().astype(np.int32),
            )
        )
    dump.write(Step(int(path.stem.removeprefix("step_")), "any", {}, ["x"], rows), path.parent, 2**30)


def test_the_check_stage_compares_each_engine_with_the_weights_that_sampled(saved, tmp_path):
    from transformers import AutoConfig

    model, actor = saved
    out, config = tmp_path / "out", AutoConfig.from_pretrained(model)
    runs = {name: tables.run_folder(out, job) for name, job in settings.JOBS.items()}
    before = exact.ModelFolder(model)
    write_dump(runs["gtpo"] / "tokens/step_1.parquet", before, config, 0.01)
    write_dump(runs["resume"] / "tokens/step_4.parquet", exact.Checkpoint(actor), config, 0.02)
    shutil.copytree(actor, runs["gtpo"] / "checkpoints/global_step_3/actor")
    (out / "done").mkdir()
    options = big_model.parse([str(model), "--stages", "check", "--out", str(out)])
    for stage in ("gtpo", "resume"):
        (out / "done" / stage).touch()
    assert big_model.run(options) == 0

    def results():
        rows = tables.check_rows(out)
        return {(row["algorithm"], row["step"], row["weights"], row["value"]): row for row in rows}

    found = results()
    assert found.pop(("gtpo_v2", 3, "checkpoint", tables.CHANGED))["mean"] == exact.share_changed(
        before, exact.Checkpoint(actor)
    )
    for step, weights, error in ((1, "model folder", 0.01), (4, "checkpoint", 0.02)):
        for value, factor in ((LOG_PROB, 1), (ENTROPY, 2), (ROLLOUT_LOG_PROB, 3)):
            row = found.pop(("gtpo_v2", step, weights, value))
            assert row["mean"] == pytest.approx(factor * error, abs=1e-4)
            assert row["largest"] == pytest.approx(factor * error, abs=1e-4)
    assert found == {}

    # The other run comes later; what was compared stays as it was.
    kept = results()
    shutil.rmtree(runs["gtpo"] / "tokens")
    write_dump(runs["dapo"] / "tokens/step_1.parquet", before, config, 0.03)
    (out / "done/dapo").touch()
    assert big_model.run(options) == 0
    found = results()
    assert {key: found[key] for key in kept} == kept
    assert found["dapo", 1, "model folder", ENTROPY]["mean"] == pytest.approx(0.06, abs=1e-4)
