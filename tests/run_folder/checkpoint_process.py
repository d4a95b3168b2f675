"""One rank of test_conversion.py: verl's FSDP engine on gloo loads models and saves the checkpoints of actors.

usage: checkpoint_process.py FOLDER RANK WORLD_SIZE   (FOLDER holds model folders; CASES/global_step_1 will be there)

A process of its own because verl fixes its platform and devices when it is imported.
"""

import os
import sys
from pathlib import Path

import torch

folder, rank, world_size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
os.environ.update(VERL_PLATFORM="cpu", RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))

from gtpo_verl.verl_plugin import engine, hooks  # noqa: E402

hooks.install()
engine.register_engines()

from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig  # noqa: E402
from verl.workers.engine import EngineRegistry  # noqa: E402

torch.set_num_threads(1)
torch.distributed.init_process_group("cpu:gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size)
ALL = {"target_modules": "all-linear", "lora_rank": 4, "lora_alpha": 10}
# name: (model, strategy, adapter, of the checkpoint)
CASES: dict[str, tuple[str, str, dict, dict]] = {
    "untied-fsdp2": ("untied", "fsdp2", {}, {}),
    "tied-fsdp2": ("tied", "fsdp2", {}, {}),
    "untied-fsdp": ("untied", "fsdp", {}, {}),
    "adapter-fsdp2": ("untied", "fsdp2", ALL, {}),
    "adapter-fsdp": ("untied", "fsdp", ALL, {}),
    "adapter-tied": ("tied", "fsdp2", ALL, {}),
    "adapter-of-some": ("untied", "fsdp2", {**ALL, "target_modules": ["q_proj", "down_proj"], "lora_rank": 2}, {}),
    "adapter-alone": ("untied", "fsdp2", ALL, {"save_lora_only": True}),
}
for name, (model, strategy, adapter, kept) in CASES.items():
    actor = EngineRegistry.new(
        "language_model",
        strategy,
        model_config=HFModelConfig(
            path=str(folder / model),
            override_config={"attn_implementation": "sdpa"},
            use_remove_padding=True,
            **adapter,
        ),
        engine_config=FSDPEngineConfig(
            strategy=strategy,
            model_dtype="fp32",
            use_torch_compile=False,
            mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"},
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=10, lr_warmup_steps=0),
        checkpoint_config=CheckpointConfig(save_contents=["model"], **kept),
    )
    actor.initialize()
    torch.manual_seed(2)
    for weight_name, weight in actor.module.named_parameters():
        if "lora_B" in weight_name:  # begins with zeros, as if nothing had been learnt
            torch.nn.init.normal_(weight, std=0.3)
    actor.save_checkpoint(str(folder / name / "global_step_1/actor"), global_step=1)
torch.distributed.destroy_process_group()
