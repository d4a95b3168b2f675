"""verl's agent loops, with one loop for all responses and one call for many."""

from collections import OrderedDict
from typing import Any

import ray
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import DictConfigWrap, ToolListWrap
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from gtpo_verl.verl_plugin.rollout.client import BatchingClient
from gtpo_verl.verl_plugin.rollout.reward import BatchingRewards
from gtpo_verl.verl_plugin.transfer import row_queue

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
        self._rows = row_queue.install(self.config, self)
        self._shared: SharedSingleTurnAgentLoop | None = None

    async def _run_agent_loop(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return await self._run_one(*args, **kwargs)
        except Exception as error:
            cause = getattr(error, "cause", None) or error  # under Ray's wrapper
            self._rows.errors.setdefault(kwargs["uid"], f"{type(cause).__name__}: {cause}")
            raise

    async def _run_one(
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
