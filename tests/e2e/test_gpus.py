"""The scripts of the 32B runs on two GPUs: FSDP2, sequence and tensor parallel, offload, save, resume.

The model has Qwen2.5-7B's width and vocabulary, two layers and random weights, so that every tensor of a rank has a
real size and no download is needed. Needs two CUDA devices, flash-attn (sequence parallelism works with no other
attention) and 60 GB of disk; eleven minutes on two H200:

    python -m pytest -m gpu tests/e2e/test_gpus.py
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from training_run import ROOT, Run, read_tokens

from benchmarks.big_model import inputs as big
from benchmarks.big_model.cluster import environment, ray_head

pytestmark = [pytest.mark.e2e, pytest.mark.gpu, pytest.mark.timeout(1500)]

ON_TWO_GPUS = [
    "scale=32b_16x8",
    "trainer.nnodes=1",
    "trainer.n_gpus_per_node=2",
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.max_model_len=1088",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=8192",
    "data.train_batch_size=16",
    "data.max_prompt_length=64",
    "data.max_response_length=1024",
    "reward.reward_kwargs.overlong_buffer_cfg.len=128",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.save_freq=2",
]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    two_layers = {"num_hidden_layers": 2, "max_position_embeddings": 4096}
    big.save_model(folder / "model", {**big.SHAPES["7b"], **two_layers})
    big.save_data(folder)
    return folder


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The job server of a Ray cluster of this one machine and its GPUs."""
    with ray_head(gpus=2) as server:
        yield server


def submit(address: str, inputs: Path, run: Run, *overrides: str) -> None:
    variables = {
        **environment(),
        "RAY_ADDRESS": address,
        "MODEL_PATH": str(inputs / "model"),
        "TRAIN_FILE": str(inputs / "train.parquet"),
        "VAL_FILE": str(inputs / "test.parquet"),
        "RUNS_DIR": str(run.folder / "runs"),
    }
    command = [str(ROOT / "scripts/run_gtpo_v2_qwen2.5_32b.sh"), *ON_TWO_GPUS, *overrides]
    command.append(f"reward.custom_reward_function.path={inputs / 'reward.py'}")
    job = subprocess.run(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    (run.folder / "job.log").write_text(job.stdout)
    log = next(run.folder.glob("runs/*/*/train.log"), None)
    assert job.returncode == 0, job.stdout[-6000:] + (log.read_text(errors="replace")[-6000:] if log else "")


def one_gpu(model: torch.nn.Module, prompt: torch.Tensor, response: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 log p and entropy of the response's tokens, (tokens,) each, without packing or any parallelism."""
    ids = torch.cat([prompt, response]).cuda()
    with torch.no_grad():
        logits = model(ids[None]).logits[0, len(prompt) - 1 : -1].float()
    log_p = torch.log_softmax(logits, -1)
    return log_p.gather(-1, ids[len(prompt) :, None])[:, 0].cpu(), -(log_p.exp() * log_p).sum(-1).cpu()


def test_trains_saves_and_resumes_on_two_gpus(address: str, inputs: Path, run: Run) -> None:
    from transformers import Qwen2ForCausalLM

    tokens = run.folder / "tokens"
    common = ["gtpo_verl.token_dump_freq=1", f"gtpo_verl.token_dump_dir={tokens}"]
    submit(address, inputs, run, *common, "trainer.total_training_steps=2")
    assert run.steps() == [1, 2]
    submit(address, inputs, run, *common, "trainer.total_training_steps=3")
    assert run.steps() == [1, 2, 3]

    # Two GPUs against one, for the untrained policy that sampled the first step, both in bf16. What bf16 does to a
    # token is the distance to the same model in fp32; the parallel run may be no further from it than one GPU is.
    dump = read_tokens(tokens / "step_1.parquet")
    chosen = range(0, len(dump["responses"]), 8)
    values: dict[torch.dtype, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for dtype, attention in ((torch.bfloat16, "flash_attention_2"), (torch.float32, "sdpa")):
        model = Qwen2ForCausalLM.from_pretrained(inputs / "model", dtype=dtype, attn_implementation=attention).cuda()
        values[dtype] = [one_gpu(model, dump["prompts"][i], dump["responses"][i]) for i in chosen]
        del model
    for column, name in enumerate(("old_log_probs", "entropy")):
        parallel = torch.cat([dump[name][i] for i in chosen])
        single, exact = (torch.cat([row[column] for row in values[dtype]]) for dtype in values)
        error = {"two GPUs": parallel - exact, "one GPU": single - exact, "two against one": parallel - single}
        for what, difference in error.items():
            print(f"{name}, {what}: mean {difference.abs().mean():.2e}, largest {difference.abs().max():.2e} nats")
        assert error["two GPUs"].abs().mean() <= 1.5 * error["one GPU"].abs().mean()
        assert error["two GPUs"].abs().max() <= 3 * error["one GPU"].abs().max()

    for record in run.metrics():
        metrics = record["data"]
        timings = {key.split("/")[1]: round(value, 2) for key, value in metrics.items() if key.startswith("timing_s/")}
        memory = {key.split("/")[-1]: round(value, 1) for key, value in metrics.items() if "memory" in key}
        print(f"step {record['step']}: {timings} {memory}")
        assert metrics["training/rollout_probs_diff_mean"] < 0.01
