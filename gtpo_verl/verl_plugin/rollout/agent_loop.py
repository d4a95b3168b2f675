"""verl's agent loops, with one loop for all responses and one call for many."""

from collections import OrderedDict
from typing import Any

import ray
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1 import agent_loop_tq
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from gtpo_verl.verl_plugin.rollout.batching import Batch, Batcher, settle
from gtpo_verl.verl_plugin.rollout.client import BatchingClient
from gtpo_verl.verl_plugin.rollout.reward import BatchingRewards

_SINGLE_TURN = f"{SingleTurnAgentLoop.__module__}.{SingleTurnAgentLoop.__qualname__}"
_Worker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class.__ray_actor_class__  # type: ignore[attr-defined]


class BatchingAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager; its workers are `BatchingAgentLoopWorker`."""

    def __init__(self, config: Any, llm_client: Any, *args: Any, **kwargs: Any):
        super().__init__(config, BatchingClient.adopt(llm_client), *args, **kwargs)
        self.agent_loop_workers_class = ray.remote(BatchingAgentLoopWorker)


class BatchingAgentLoopWorker(_Worker):
    """verl's worker. Any agent loop gains by the calls that travel together; verl's single-turn loop, which keeps
    nothing of a response, is made once and not once a response."""

    reward_loop_worker_handles: list[Any] | None

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if isinstance(self.llm_client, BatchingClient):
            self.llm_client.start()
        if self.reward_loop_worker_handles is not None:
            self.reward_loop_worker_handles = [BatchingRewards(self.reward_loop_worker_handles)]
        batch_rows()
        self._shared: SharedSingleTurnAgentLoop | None = None

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], *, agent_name: str, **kwargs: Any
    ) -> Any:
        registered = agent_loop._agent_loop_registry.get(agent_name)
        traced = self.rollout_config.trace.get("backend") is not None
        if traced or registered != {"_target_": _SINGLE_TURN}:
            return await super()._run_agent_loop(sampling_params, trajectory, agent_name=agent_name, **kwargs)
        kwargs.pop("trace", None)
        output = await self._single_turn().run(sampling_params, **kwargs)
        return await self._agent_loop_postprocess(output, trajectory["validate"], **kwargs)

    def _single_turn(self) -> "SharedSingleTurnAgentLoop":
        if self._shared is None:
            self._shared = SharedSingleTurnAgentLoop(
                trainer_config=DictConfigWrap(self.config),
                server_manager=self.llm_client,
                tokenizer=self.tokenizer,
                processor=self.processor,
                hf_model_type=self.hf_model_type,
                dataset_cls=self.dataset_cls,
                data_config=DictConfigWrap(self.config.data),
                tools=ToolListWrap(self.tools),
            )
        return self._shared


class SharedSingleTurnAgentLoop(SingleTurnAgentLoop):
    """verl's single-turn loop for many responses, which turns a prompt into tokens once for all of its responses."""

    _REMEMBERED = 256

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._prompts: OrderedDict[str, list[int]] = OrderedDict()
        self.loop = _Inline()  # type: ignore[assignment]

    async def ct_build_initial_tokens(self, messages: list[dict], *media: Any, **named_media: Any) -> list[int]:
        if any(media) or any(named_media.values()):
            return await super().ct_build_initial_tokens(messages, *media, **named_media)
        prompt = repr(messages)
        if prompt not in self._prompts:
            self._prompts[prompt] = await super().ct_build_initial_tokens(messages)
            if len(self._prompts) > self._REMEMBERED:
                self._prompts.popitem(last=False)
        return list(self._prompts[prompt])


class _Inline:
    """In place of the event loop, which verl's loop uses to work in another thread: for a list of tokens the way there
    is longer than the work."""

    async def run_in_executor(self, _: None, work: Any) -> Any:
        return work()


def batch_rows() -> None:
    """Patches verl/trainer/ppo/v1/agent_loop_tq.py (`_agent_loop_postprocess`) in this process, once: it puts each
    response into TransferQueue by a call of its own, four messages to its processes."""
    if isinstance(agent_loop_tq.tq, RowQueue):
        return
    agent_loop_tq.tq = RowQueue(agent_loop_tq.tq)  # type: ignore[assignment]
    agent_loop_tq.list_of_dict_to_tensordict = list  # type: ignore[assignment]  # made once a batch, below


class RowQueue:
    """TransferQueue, as far as verl's agent loops use it, with puts that travel together."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._put = Batcher(self._put_many)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def async_kv_put(self, key: str, partition_id: str, tag: dict[str, Any]) -> Any:
        """A tag without fields."""
        return self._put((partition_id, [key], None, [tag]))

    def async_kv_batch_put(
        self, keys: list[str], partition_id: str, fields: list[dict[str, Any]], tags: list[dict[str, Any]]
    ) -> Any:
        """Rows of fields, a dictionary a key, and their tags."""
        return self._put((partition_id, keys, fields, tags))

    async def _put_many(self, batch: Batch) -> None:
        alike: dict[Any, Batch] = {}
        for item, future in batch:
            partition_id, _, fields, _ = item
            columns = None if fields is None else tuple(fields[0])
            alike.setdefault((partition_id, columns), []).append((item, future))
        for (partition_id, columns), part in alike.items():
            keys = [key for item, _ in part for key in item[1]]
            tags = [tag for item, _ in part for tag in item[3]]
            rows = None if columns is None else [row for item, _ in part for row in item[2]]
            try:
                await self._queue.async_kv_batch_put(
                    keys=keys,
                    partition_id=partition_id,
                    fields=None if rows is None else list_of_dict_to_tensordict(rows),
                    tags=tags,
                )
                result: Any = None
            except Exception as error:
                result = error
            for _, future in part:
                settle(future, result)
