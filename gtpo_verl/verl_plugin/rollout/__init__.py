"""Rollouts of a recipe run: the same responses as verl's own, for fewer calls and objects.

verl makes every token of every response an output of its own that travels from vLLM's engine to its server, and every
response a chain of Ray and TransferQueue calls. Here a response leaves the engine when it is finished (`scheduler`),
and calls that are made at the same time travel together (`batching`): to the server (`client`, `server`), to the
reward workers (`reward`) and to TransferQueue (`agent_loop`). `gtpo_verl.fast_rollout=false` leaves it all to verl.
"""

from omegaconf import DictConfig, OmegaConf, open_dict

_OURS = "gtpo_verl.verl_plugin.rollout.agent_loop.BatchingAgentLoopManager"
_MANAGER = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"


def serves(config: DictConfig) -> bool:
    """Whether `config` samples with the vLLM servers that `server` extends."""
    rollout = config.actor_rollout_ref.rollout
    return rollout.name == "vllm" and not OmegaConf.select(rollout, "disaggregation.enabled")


def install(config: DictConfig) -> None:
    """Puts the classes of this package in place, in the process that starts servers, reward workers and agent loops.

    A user's own `agent_loop_manager_class` stays, and with it verl's servers and reward workers.
    """
    if not serves(config) or OmegaConf.select(config, _MANAGER) is not None:
        return
    from gtpo_verl.verl_plugin.rollout import reward, server

    server.install()
    reward.install()
    with open_dict(config):
        OmegaConf.update(config, _MANAGER, _OURS)


def puts_rows(config: DictConfig) -> bool:
    """Whether what lies in TransferQueue comes from verl's agent-loop workers, `install`ed or not; of a user's own
    `agent_loop_manager_class` nothing is known."""
    return OmegaConf.select(config, _MANAGER) in (None, _OURS)
