"""What `gtpo_verl.verl_plugin.rollout` assumes of verl's rollouts, beside `test_verl.py`.

Of the modules that need vLLM the source is read: they are imported in the processes of a run only.
"""

import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest

AGENT_LOOP = "verl.experimental.agent_loop.agent_loop"
QUEUE = "verl.trainer.ppo.v1.agent_loop_tq"
SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
CLIENT = "verl.workers.rollout.llm_server"
SINGLE_TURN = "verl.experimental.agent_loop.single_turn_agent_loop"
REWARD = "verl.experimental.reward_loop.reward_loop"

# (module, what its source says, what breaks without)
SAYS = [
    (QUEUE, "tq.async_kv_batch_put(", "each response is put into TransferQueue by itself"),
    (QUEUE, "list_of_dict_to_tensordict(fields)", "rows reach TransferQueue as a list"),
    (QUEUE, "tq.async_kv_put(key=uid, partition_id=partition_id, tag=", "a failed prompt does not say why"),
    (QUEUE, "self.agent_loop_workers_class = AgentLoopWorkerTQ", "our workers never start"),
    (QUEUE, "await self._compute_score(outputs, kwargs=kwargs)", "rewards do not travel together"),
    (AGENT_LOOP, "_agent_loop_registry[agent_name]", "the single-turn loop is made for every response"),
    (AGENT_LOOP, "random.choice(self.reward_loop_worker_handles)", "rewards do not travel together"),
    (AGENT_LOOP, ".compute_score.remote(data)", "rewards do not travel together"),
    (AGENT_LOOP, "await self.loop.run_in_executor(", "tokens are counted in another thread"),
    (CLIENT, "await self._acquire_server(", "requests do not travel together"),
    (CLIENT, "await server.generate.remote(", "requests do not travel together"),
    (QUEUE, "self._run_agent_loop(", "a failed response does not say why"),
    (QUEUE, "import transfer_queue as tq", "each response is put into TransferQueue by itself"),
    (AGENT_LOOP, "class DictConfigWrap", "the single-turn loop cannot be made"),
    (AGENT_LOOP, "class ToolListWrap", "the single-turn loop cannot be made"),
    (AGENT_LOOP, "self.llm_client = llm_client", "requests do not travel together"),
    (AGENT_LOOP, "self.reward_loop_worker_handles = reward_loop_worker_handles", "rewards do not travel together"),
    (AGENT_LOOP, "self.agent_loop_workers_class", "our workers never start"),
    (AGENT_LOOP, "agent_name: str,\n        trace: bool", "the single-turn loop is made for every response"),
    (AGENT_LOOP, "self.loop = get_event_loop()", "tokens are counted in another thread"),
    (SINGLE_TURN, "await self.ct_build_initial_tokens(", "a prompt is turned into tokens for every response"),
    (CLIENT, "self._load_balancer = load_balancer_handle", "servers are not asked for together"),
    (CLIENT, "self._load_balancer.acquire_server.remote(request_id=request_id", "servers are not asked for together"),
    (CLIENT, "self._load_balancer.release_server.remote(server_id=server_id", "servers are not asked for together"),
    (CLIENT, "self._release_server(", "servers are not given back together"),
    (REWARD, "async def compute_score(self, data: DataProto) -> dict", "rewards that are no number are trained on"),
    (REWARD, "ray.remote(RewardLoopWorker)", "our reward workers never start"),
    (SERVER, "ray.remote(vLLMHttpServer)", "our servers never start"),
    (SERVER, "self.server_class =", "our servers never start"),
    (SERVER, "async def run_server(self, args", "a dead engine is awaited for ever"),
    (SERVER, "self.engine = ", "a dead engine is awaited for ever"),
    (
        SERVER,
        "prompt_ids: list[int],\n        sampling_params: dict[str, Any],\n        request_id: str",
        "no response comes",
    ),
    (SERVER, "self._preprocess_engine_kwargs(engine_kwargs)", "tokens leave vLLM's engine one by one"),
    (SERVER, "SamplingParams(max_tokens=max_tokens, **sampling_params)", "responses are streamed to nobody"),
    (SERVER, "logprobs[token_ids[i]].logprob", "log-probabilities are read in another way"),
    (SERVER, "while self._admitting > 0", "an abort waits for all responses"),
    (SERVER, "await self._park_until_admitted(request_id)", "an abort does not wait for requests on their way"),
    (SERVER, "self.engine.generate(", "an abort does not wait for requests on their way"),
]


def source(module: str) -> str:
    spec = importlib.util.find_spec(module.rpartition(".")[0])
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0], f"{module.rpartition('.')[2]}.py").read_text()


@pytest.mark.parametrize(("module", "text", "breaks"), SAYS, ids=[text for _, text, _ in SAYS])
def test_verl_does_it_this_way(module: str, text: str, breaks: str) -> None:
    assert text in source(module), f"{module}: {breaks}"


def test_the_single_turn_loop_keeps_nothing_of_a_response() -> None:
    """It is shared by all responses."""
    text = source(SINGLE_TURN)
    body = text[text.index("async def run") :]
    assert "self." in body
    assert not [line for line in body.splitlines() if line.strip().startswith("self.") and " = " in line]


def test_the_loop_is_made_of_what_verl_gives_it() -> None:
    text = source(AGENT_LOOP)
    call = text[text.index("hydra.utils.instantiate(") :]
    given = call[: call.index("output: AgentLoopOutput")]
    names = {line.split("=")[0].strip() for line in given.splitlines() if "=" in line}
    assert names == {
        "config",
        "trainer_config",
        "server_manager",
        "tokenizer",
        "processor",
        "hf_model_type",
        "dataset_cls",
        "data_config",
        "tools",
    }, "SharedSingleTurnAgentLoop lacks something, or gets something that is gone"


def test_the_agent_loop_worker_is_a_ray_actor_whose_class_can_be_subclassed() -> None:
    worker = importlib.import_module(QUEUE).AgentLoopWorkerTQ.__ray_metadata__.modified_class.__ray_actor_class__
    assert inspect.isclass(worker)
    assert "uid" in inspect.getsource(worker._run_prompt)


def test_replicas_are_registered_by_name() -> None:
    registry = importlib.import_module("verl.workers.rollout.replica").RolloutReplicaRegistry
    assert "vllm" in registry._registry, "our servers never start"
    assert list(inspect.signature(registry.register).parameters) == ["name", "loader"]
