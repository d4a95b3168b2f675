"""The losses of others' presets as verl 0.9.1 computes them: in its FSDP2 engine on gloo, one process for all.

The gradient is compared with that of `other_methods`, written from the papers, over the Hugging Face model in float64;
in one micro-batch and in two, as it may depend on them.
"""

import os
import subprocess
import sys
from pathlib import Path

import brute_force
import other_methods
import pytest
import torch
from engine_models import VOCABULARY, save_models
from omegaconf import OmegaConf

from gtpo_verl.configuration.composition import compose_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

METHODS = {
    "dapo": other_methods.dapo,
    "grpo": other_methods.grpo,
    "dr_grpo": other_methods.dr_grpo,
    "gspo": other_methods.gspo,
    "cispo": other_methods.cispo,
    "gmpo": other_methods.gmpo,
    "clip_cov": other_methods.clip_cov,
    "kl_cov": other_methods.kl_cov,
    "dapo_forking_tokens": other_methods.dapo,
}
# Others than the preset's, to see what is read.
AGGREGATION = "actor_rollout_ref.actor.loss_agg_mode"
VARIANTS = {
    "gmpo, another mean": ["algorithm=gmpo", f"{AGGREGATION}=seq-mean-token-sum"],
    "gspo, another mean": ["algorithm=gspo", f"{AGGREGATION}=token-mean"],
}
MICRO_BATCHES = [8, 4]
LENGTHS = [6, 2, 11, 3, 8, 2, 5, 9]
ADVANTAGES = [1.3, -0.7, 0.4, -1.1, 0.9, 1.6, -1.4, -0.5]


def rows():
    """Log-ratios on both sides of every clip range but those of Clip-Cov and CISPO below."""
    generator = torch.Generator().manual_seed(3)
    return [
        {
            "prompts": torch.randint(0, VOCABULARY, (3,), generator=generator),
            "responses": torch.randint(0, VOCABULARY, (length,), generator=generator),
            "moved": 0.3 * torch.randn(length, generator=generator),
            "since_the_reference": 0.5 * torch.randn(length, generator=generator),
            "advantage": torch.tensor(advantage),
        }
        for length, advantage in zip(LENGTHS, ADVANTAGES, strict=True)
    ]


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """verl's losses and gradients, and the model they are of."""
    folder = tmp_path_factory.mktemp("preset_losses")
    save_models(folder)
    overrides = {**{name: [f"algorithm={name}"] for name in METHODS}, **VARIANTS}
    configs = {name: compose_config(given) for name, given in overrides.items()}
    cases = {
        name: {
            "actor": OmegaConf.to_container(config.actor_rollout_ref.actor),
            "share": config.algorithm.forking.share,
        }
        for name, config in configs.items()
    }
    torch.save({"rows": rows(), "cases": cases, "micro_batches": MICRO_BATCHES}, folder / "cases.pt")
    process = subprocess.run(
        [sys.executable, Path(__file__).with_name("preset_loss_process.py"), folder, "0", "1"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return folder / "untied", torch.load(folder / "results.pt")


def micro_batches_of(model, share, size):
    """The rows of `other_methods`, of a policy in float64."""
    found, entropies = [], []
    for row in rows():
        ids = torch.cat([row["prompts"], row["responses"]])
        log_p = torch.log_softmax(model(ids[None]).logits[0, 2:-1], -1)
        log_prob = log_p.gather(-1, row["responses"][:, None]).squeeze(1)
        before = log_prob.detach()
        entropies.append((-(log_p.exp() * log_p).sum(-1)).tolist())
        found.append(
            {
                "log_prob": log_prob,
                "old": before + row["moved"],
                "reference": before + row["since_the_reference"],
                "advantage": row["advantage"].double(),
            }
        )
    if share < 1:
        for row, kept in zip(found, brute_force.forking(entropies, share, "batch"), strict=True):
            row["advantage"] = row["advantage"] * torch.tensor(kept)
    return [found[start : start + size] for start in range(0, len(found), size)]


def difference(gradients, expected):
    """Relative, over all parameters."""
    away = sum((gradients[name] - truth).square().sum() for name, truth in expected.items())
    return float((away / sum(truth.square().sum() for truth in expected.values())).sqrt())


@pytest.mark.parametrize("size", MICRO_BATCHES)
@pytest.mark.parametrize("name", METHODS)
def test_the_gradient_is_the_papers(computed, name, size):
    from transformers import Qwen2ForCausalLM

    path, results = computed
    result = results[name, size]
    model = Qwen2ForCausalLM.from_pretrained(path, attn_implementation="eager").double()
    losses = METHODS[name](micro_batches_of(model, 0.2 if name == "dapo_forking_tokens" else 1.0, size))
    names, parameters = zip(*model.named_parameters(), strict=True)
    differences = []
    for loss in [losses] if isinstance(losses, torch.Tensor) else losses:
        gradients = dict(zip(names, torch.autograd.grad(loss, parameters, retain_graph=True), strict=True))
        differences.append((difference(result["gradients"], gradients), abs(result["loss"] - loss.item())))
    assert max(min(differences)) < 1e-4


@pytest.mark.parametrize("name", METHODS)
def test_which_methods_depend_on_the_micro_batches(computed, name):
    """Those whose presets fix their size."""
    gradients = [computed[1][name, size]["gradients"] for size in MICRO_BATCHES]
    depends = difference(*gradients) > 1e-4
    assert depends == (name in ("gmpo", "clip_cov", "kl_cov"))
    assert depends != compose_config([f"algorithm={name}"]).actor_rollout_ref.actor.use_dynamic_bsz


@pytest.mark.parametrize(("name", "read"), [("gmpo", False), ("gspo", True)])
def test_which_losses_read_loss_agg_mode(computed, name, read):
    results = computed[1]
    away = difference(results[f"{name}, another mean", 8]["gradients"], results[name, 8]["gradients"])
    assert (away > 1e-4) == read
