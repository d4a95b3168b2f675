"""What the runs of benchmarks/training_step.py are given."""

import argparse
from pathlib import Path

import pandas as pd
import torch
import verl
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from benchmarks import training_step

PRESET = Path(__file__).parents[2] / "configs/scale/smollm2_1gpu.yaml"
# Of the preset, what the benchmark sets for all runs, what is verl's own default, and what verl has no key for.
ELSEWHERE = {
    "defaults",
    "gtpo_verl",
    "data",
    "trainer",
    "reward",  # 8 workers; the length penalty is the recipe's reward's
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",  # of algorithms that fix it
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.max_num_seqs",
    "actor_rollout_ref.rollout.agent",
}


def stock(*overrides: str) -> DictConfig:
    folder = Path(verl.__path__[0], "trainer/config")
    with initialize_config_dir(str(folder), version_base=None):
        return compose("ppo_trainer", [*training_step.STOCK, *overrides, *training_step.STEP])


def test_verl_takes_both_ways_and_the_tuned_one_is_the_preset() -> None:
    plain, tuned = stock(), stock(*training_step.TUNED)
    preset = yaml.safe_load(PRESET.read_text())
    different = []

    def compare(prefix: str, part: dict) -> None:
        for name, value in part.items():
            key = f"{prefix}{name}"
            if key in ELSEWHERE:
                continue
            if isinstance(value, dict):
                compare(f"{key}.", value)
            elif OmegaConf.select(tuned, key) != value:
                different.append(key)

    compare("", preset)
    assert not different, "benchmarks/training_step.py: TUNED is not configs/scale/smollm2_1gpu.yaml"
    assert plain.actor_rollout_ref.actor.ppo_max_token_len_per_gpu == 16384
    for key, value in (("actor_rollout_ref.rollout.agent.num_workers", 8), ("reward.num_workers", 8)):
        assert OmegaConf.select(plain, key) == value, "verl's default is no longer that of the preset"


def test_a_model_and_prompts_that_fit_are_made_once(tmp_path: Path) -> None:
    options = argparse.Namespace(out=tmp_path, model=None, data=None)
    training_step.prepare(options, training_step.SMOLLM2)
    weights = options.model / "model.safetensors"
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    assert type(model) is LlamaForCausalLM
    assert model.num_parameters() == 134_515_008  # SmolLM2-135M's
    assert model.config.rope_parameters == {"rope_type": "default", "rope_theta": 100_000.0}
    assert model.config.rms_norm_eps == 1e-5
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    prompts = list(pd.read_parquet(options.data / "train.parquet")["prompt"])
    longest = max(
        len(tokenizer.apply_chat_template(list(one), add_generation_prompt=True)["input_ids"]) for one in prompts
    )
    torch.manual_seed(0)
    prompt = tokenizer.apply_chat_template(list(prompts[0]), add_generation_prompt=True)["input_ids"]
    output = model.generate(
        torch.tensor([prompt] * 4),
        do_sample=True,
        top_k=0,
        max_new_tokens=30,
        output_logits=True,
        return_dict_in_generate=True,
    )
    responses = output.sequences[:, len(prompt) :].tolist()
    assert min(len(set(response)) for response in responses) > 10, "a response repeats one token"
    assert 4 < torch.distributions.Categorical(logits=torch.stack(output.logits)).entropy().mean() < 6
    most = next(int(one.split("=")[1]) for one in training_step.STEP if one.startswith("data.max_prompt_length"))
    assert longest <= most
    assert len(prompts) % 64 == 0
    assert (options.data / "reward.py").exists()
    made = weights.stat().st_mtime_ns
    again = argparse.Namespace(out=tmp_path, model=None, data=None)
    training_step.prepare(again, training_step.SMOLLM2)
    assert again == options
    assert weights.stat().st_mtime_ns == made
