"""Saves a model as so many FSDP2 ranks would, after a change; one process, whose groups compute nothing.

usage: fsdp_shards.py MODEL ACTOR RANKS
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen2ForCausalLM

source, actor, ranks = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
actor.mkdir(parents=True)
for rank in range(ranks):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    model = Qwen2ForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[5:15] += 1
        model.model.norm.weight[3] = 2
    mesh = init_device_mesh("cpu", (ranks,))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.save(model.state_dict(), actor / f"model_world_size_{ranks}_rank_{rank}.pt")
    dist.destroy_process_group()
(actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
