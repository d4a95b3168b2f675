"""Rollouts of test_rollout.py: verl's servers, reward workers, agent loops and TransferQueue, without a trainer.

usage: rollout_process.py FOLDER verl|gtpo-verl   (writes FOLDER/verl.pt or FOLDER/gtpo-verl.pt)

A process of its own because verl fixes its platform when it is imported, and because both ways patch.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

os.environ["VERL_PLATFORM"] = "cpu"
ROOT = Path(__file__).parents[2]
PROMPTS, SESSIONS, LENGTH = 4, 3, 40
LOOPS = """
- {name: seeded, _target_: rollout_process.SeededAgentLoop}
- {name: stopping, _target_: rollout_process.StoppingAgentLoop}
"""

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop  # noqa: E402


class SeededAgentLoop(SingleTurnAgentLoop):
    """A user's own: sampled, and the same every time."""

    parameters: ClassVar[dict[str, Any]] = {}

    async def run(self, sampling_params, **kwargs):
        seed = 100 * int(kwargs["index"]) + kwargs["session_id"]
        return await super().run({**sampling_params, **self.parameters, "temperature": 1.0, "seed": seed}, **kwargs)


class StoppingAgentLoop(SeededAgentLoop):
    """Ends at a string, which vLLM finds in the text."""

    parameters: ClassVar[dict[str, Any]] = {"stop": ["="]}


class Rollouts:
    """What a training run has between the prompts and TransferQueue."""

    def __init__(self, folder: Path, ours: bool, *overrides: str):
        import ray
        from omegaconf import OmegaConf, open_dict

        from gtpo_verl.configuration.composition import compose_config
        from gtpo_verl.configuration.preparation import prepare
        from gtpo_verl.verl_plugin import cpu, fork_server, rollout, transfer

        (folder / "loops.yaml").write_text(LOOPS)
        cpu.install()
        self.config = compose_config(
            [
                "model=tiny",
                "scale=cpu",
                f"gtpo_verl.cache_dir={ROOT / '.cache/gtpo-verl'}",
                f"data.max_response_length={LENGTH}",
                "actor_rollout_ref.rollout.temperature=0",
                f"actor_rollout_ref.rollout.n={SESSIONS}",
                "actor_rollout_ref.rollout.agent.num_workers=2",
                f"actor_rollout_ref.rollout.agent.agent_loop_config_path={folder / 'loops.yaml'}",
                "reward.num_workers=2",
                *overrides,
            ]
        )
        prepare(self.config)
        with open_dict(self.config):
            self.config.transfer_queue.enable = True
        if ours:
            rollout.install(self.config)

        from verl.experimental.reward_loop import RewardLoopManager
        from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
        from verl.trainer.ppo.v1 import AgentLoopManagerTQ
        from verl.utils.import_utils import load_class_from_fqn
        from verl.workers.rollout.llm_server import LLMServerManager

        environment = {name: os.environ[name] for name, value in self.config.gtpo_verl.env.items() if value is not None}
        environment |= {"TRANSFER_QUEUE_ENABLE": "1", "PYTHONPATH": str(Path(__file__).parent)}
        os.environ.update(environment)
        arguments = OmegaConf.to_container(self.config.ray_kwargs.ray_init)
        variables = {**get_ppo_ray_runtime_env(self.config)["env_vars"], **environment}
        fork_server.start(self.config, str(folder), str(folder / "imports.log"))
        ray.init(**{**arguments, "runtime_env": {"env_vars": variables}})
        self.queue = transfer.transfer_queue
        self.queue.init(self.config.transfer_queue)
        rewards = RewardLoopManager(config=self.config)
        worker = ray.remote(num_gpus=1)(Nothing).remote()
        servers = LLMServerManager.create(
            config=self.config, worker_group=SimpleNamespace(workers=[worker], world_size=1)
        )
        name = self.config.actor_rollout_ref.rollout.agent.get("agent_loop_manager_class")
        manager = load_class_from_fqn(name, "AgentLoopManager") if name else AgentLoopManagerTQ
        self.replica = servers.get_replicas()[0]
        self.manager = manager.create(
            config=self.config,
            llm_client=servers.get_client(),
            teacher_client=None,
            reward_loop_worker_handles=rewards.reward_loop_worker_handles,
        )

    def start(self, name: str, agents: list[str]) -> None:
        """Prompts `name`0, `name`1, ... of the task, one for each agent loop named."""
        import numpy as np
        from verl.trainer.ppo.utils import create_rl_dataset
        from verl.utils import hf_tokenizer
        from verl.utils import tensordict_utils as tu
        from verl.utils.dataset.rl_dataset import collate_fn

        tokenizer = hf_tokenizer(self.config.actor_rollout_ref.model.path)
        data = create_rl_dataset(self.config.data.train_files, self.config.data, tokenizer, None, is_train=True)
        columns = collate_fn([data[i] for i in range(len(agents))])
        uids = [f"{name}{i}" for i in range(len(agents))]
        columns["uid"] = np.array(uids, dtype=object)
        columns["agent_name"] = np.array(agents, dtype=object)
        batch = tu.get_tensordict(columns)
        tu.assign_non_tensor_data(batch, "global_steps", 1)
        tag = {"is_prompt": True, "status": "pending", "global_steps": 1}
        self.queue.kv_batch_put(keys=uids, partition_id="train", tags=[tag] * len(uids))
        self.manager.generate_sequences(batch)

    def wait(self, seconds: float = 120) -> dict[str, dict[str, Any]]:
        """The tag and the fields of every response, once all prompts have ended; empties the queue."""
        import torch

        deadline = time.monotonic() + seconds
        while True:
            tags = self.queue.kv_list()["train"]
            status = {key: tag["status"] for key, tag in tags.items() if tag.get("is_prompt")}
            if set(status.values()) <= {"finished", "failure"}:
                break
            assert time.monotonic() < deadline, status
            time.sleep(0.1)
        keys = sorted(key for key in tags if key not in status)
        data = self.queue.kv_batch_get(keys=keys, partition_id="train")
        columns = {name: data[name] for name in sorted(data.keys())}
        parts = {
            name: column.unbind(0) if isinstance(column, torch.Tensor) else list(column)
            for name, column in columns.items()
        }
        self.queue.kv_clear(keys=[*keys, *status], partition_id="train")
        rows = {key: {name: column[i] for name, column in parts.items()} for i, key in enumerate(keys)}
        layouts = {name: type(column).__name__ for name, column in columns.items()}
        errors = {key: tags[key].get("error") for key in status}
        return {
            "status": status,
            "errors": errors,
            "tags": {key: tags[key] for key in keys},
            "rows": rows,
            "layouts": layouts,
        }


class Nothing:
    """Holds the GPU that verl looks for."""


def main(folder: Path, ours: bool) -> None:
    import ray
    import torch

    rollouts = Rollouts(folder, ours)
    result: dict[str, Any] = {}
    # One after the other: on a CPU vLLM forgets a seed where another request of the batch has none.
    for loop in ("single_turn_agent", "seeded", "stopping"):
        rollouts.start(loop.replace("_", "-"), [loop] * PROMPTS)
        result[loop] = rollouts.wait()
    rollouts.start("wrong", ["single_turn_agent", "no such loop"])
    result["failing"] = rollouts.wait()

    # Aborted on the way: long enough that none of them ends by itself.
    server = rollouts.replica.server_handle
    sampling = {"temperature": 0, "logprobs": True, "ignore_eos": True, "max_tokens": 200}
    prompt = result["seeded"]["rows"]["seeded0_0_0"]["prompts"].tolist()
    outputs = [server.generate.remote(prompt, dict(sampling), f"long{i}") for i in range(96)]  # enough to last
    time.sleep(0.5)
    begin = time.monotonic()
    asyncio.run(rollouts.replica.abort_all_requests())
    result["abort_seconds"] = time.monotonic() - begin
    result["aborted"] = [(out.stop_reason, out.token_ids, out.log_probs) for out in ray.get(outputs, timeout=60)]
    asyncio.run(rollouts.replica.resume_generation())
    whole = ray.get(server.generate.remote(prompt, dict(sampling), "whole"), timeout=60)
    result["whole"] = (whole.stop_reason, whole.token_ids, whole.log_probs)
    torch.save(result, folder / ("gtpo-verl.pt" if ours else "verl.pt"))
    ray.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] == "gtpo-verl")
