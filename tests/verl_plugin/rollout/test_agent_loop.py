"""One loop for all responses turns prompts into the tokens that verl's loop turns them into."""

import os
import subprocess
import sys
from pathlib import Path

from gtpo_verl.tasks import tiny_model

SCRIPT = """
import asyncio, sys
from gtpo_verl.verl_plugin import cpu
cpu.install()
from transformers import AutoTokenizer
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.utils.dataset.rl_dataset import RLHFDataset
from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.verl_plugin.rollout.agent_loop import SharedSingleTurnAgentLoop

config = compose_config(["model=tiny", "scale=cpu", "data.max_prompt_length=30"])
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
SharedSingleTurnAgentLoop._REMEMBERED = 3
# Of equal lengths; alike but for who speaks; longer than is allowed; more than are remembered; the first again.
prompts = [[{"role": role, "content": text}] for role, text in (
    ("user", "1+2="), ("user", "2+1="), ("system", "1+2="), ("user", "1+2+3+4+5+6="), ("user", "7+8="),
    ("user", "1+2="),
)]
prompts.append(prompts[0] + prompts[1])

async def tokens(kind):
    loop = kind(trainer_config=DictConfigWrap(config), server_manager=None, tokenizer=tokenizer, processor=None,
                dataset_cls=RLHFDataset, data_config=DictConfigWrap(config.data))
    built = []
    for messages in prompts + prompts:
        given = await loop.ct_build_initial_tokens(messages, images=None, mm_inputs_out={})
        built.append(list(given))
        given.clear()  # whoever gets them may change them
    return built, loop

verls, _ = asyncio.run(tokens(SingleTurnAgentLoop))
ours, loop = asyncio.run(tokens(SharedSingleTurnAgentLoop))
assert ours == verls
assert len(set(map(tuple, verls))) > 4
assert len(loop._prompts) == 3
"""


def test_the_same_tokens_whichever_prompts_came_before(tmp_path: Path) -> None:
    """In a process of its own: verl's agent loops are imported under the platform `cpu`."""
    tokenizer = tiny_model.build_tokenizer()
    tiny_model.save(tiny_model.build_model(tiny_model.ModelConfig(), tokenizer), tokenizer, tmp_path)
    environment = {**os.environ, "VERL_PLATFORM": "cpu"}
    subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], check=True, timeout=300, env=environment)
