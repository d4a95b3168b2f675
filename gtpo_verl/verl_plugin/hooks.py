"""Puts gtpo-verl in place when, and only when, verl imports the module concerned.

A plain `import verl` costs no more than before: importing the V1 trainer here would add seconds to every process of
every verl job. `wrapt` runs a hook right after the named module was executed (PEP 369).
"""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import wrapt

_installed = False


def install() -> None:
    """Registers the import hooks and the `cpu` platform. Safe to call twice."""
    global _installed
    if _installed:
        return
    _installed = True

    from gtpo_verl.runtime.shared_memory import name_after_run
    from gtpo_verl.verl_plugin import cpu

    name_after_run()
    # First of all: whatever reaches an engine under VERL_PLATFORM=cpu before this dies of "Unknown platform".
    cpu.install()
    wrapt.register_post_import_hook(_algorithms, "verl.trainer.ppo.core_algos")
    wrapt.register_post_import_hook(_trainer, "verl.trainer.ppo.v1.trainer_sync")
    wrapt.register_post_import_hook(_engines, "verl.workers.engine.fsdp.transformer_impl")
    wrapt.register_post_import_hook(_fetches, "verl.utils.transferqueue_utils")
    wrapt.register_post_import_hook(_threads, "transfer_queue.client")
    wrapt.register_post_import_hook(_threads, "transfer_queue.storage.simple_storage")
    wrapt.register_post_import_hook(_warnings, "model_hosting_container_standards.logging_config")
    wrapt.register_post_import_hook(_weights, "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer")


def _algorithms(_: ModuleType) -> None:
    from gtpo_verl.verl_plugin.estimators import register_estimators
    from gtpo_verl.verl_plugin.losses import register_losses

    register_estimators()
    register_losses()


def _trainer(_: ModuleType) -> None:
    from gtpo_verl.verl_plugin.trainer import install_trainer

    install_trainer()


def _engines(_: ModuleType) -> None:
    from gtpo_verl.verl_plugin.engine import register_engines

    register_engines()


def _fetches(fetching: ModuleType) -> None:
    from gtpo_verl.verl_plugin.transfer import columns

    columns.install(fetching)


def _threads(module: ModuleType) -> None:
    """Patches transfer_queue/client.py and storage/simple_storage.py (`limit_pytorch_auto_parallel_threads`): at every
    put and get it counts the machine's cores, a file each, as no more threads than those are given to PyTorch. Where it
    is to be one (`TQ_NUM_THREADS` of configs/train.yaml) there is nothing to count."""
    if os.environ.get("TQ_NUM_THREADS") == "1":
        module.limit_pytorch_auto_parallel_threads = _one_thread  # type: ignore[attr-defined]


@contextmanager
def _one_thread(*_: object, **__: object) -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    if before > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before > 1:
            torch.set_num_threads(before)


def _warnings(_: ModuleType) -> None:
    """model_hosting_container_standards, which vLLM's server imports, lets the root logger and its handlers say errors
    alone, in the trainer's process too, unless one of two variables names another level. This package's warnings are
    said all the same."""
    if {"SAGEMAKER_CONTAINER_LOG_LEVEL", "LOG_LEVEL"} & os.environ.keys():
        return
    ours = logging.getLogger("gtpo_verl")
    if not ours.isEnabledFor(logging.WARNING):
        ours.setLevel(logging.WARNING)
    handler = logging.StreamHandler()
    handler.addFilter(lambda record: all(record.levelno < other.level for other in logging.root.handlers))
    handler.setFormatter(logging.Formatter("%(levelname)s:%(asctime)s:%(message)s"))  # as verl's
    ours.addHandler(handler)


def _weights(transfer: ModuleType) -> None:
    from gtpo_verl.verl_plugin import weight_sockets

    weight_sockets.install(transfer)


def check_version() -> None:
    """Raises RuntimeError for another verl than the one that this package requires, whose methods it overrides; pip
    says that once, while it installs the other one, and never again."""
    from importlib import metadata

    required = next(one for one in metadata.requires("gtpo-verl") or [] if one.startswith("verl=="))
    found = metadata.version("verl")
    if found.partition("+")[0] != required.removeprefix("verl=="):
        raise RuntimeError(
            f"verl {found} is installed, and gtpo-verl overrides methods of another version: pip install {required}"
        )


def check_registration() -> None:
    """Raises RuntimeError where verl does not know our estimators, losses or trainer, or is another version.

    verl logs a plugin that fails to load at DEBUG only, so that a broken installation looks like a misspelt
    estimator. Imports verl's V1 trainer (seconds); call it in the process to be checked.
    """
    check_version()
    import verl  # noqa: F401  (loads the plugins)

    problem = None
    if not _installed:
        policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
        problem = f"verl did not load the entry point `gtpo_verl` (VERL_USE_EXTERNAL_PLUGINS={policy})"
    else:
        from verl.trainer.ppo import core_algos
        from verl.trainer.ppo.v1 import get_trainer_cls

        from gtpo_verl.algorithms import ESTIMATORS, LOSSES
        from gtpo_verl.verl_plugin import trainer

        missing = [name for name in ESTIMATORS if name not in core_algos.ADV_ESTIMATOR_REGISTRY]
        missing += [name for name in LOSSES if name not in core_algos.POLICY_LOSS_REGISTRY]
        if missing:
            problem = f"verl's registries lack {', '.join(missing)}"
        elif get_trainer_cls("sync") is not trainer.sync_trainer:
            problem = "verl's trainer `sync` is not the one gtpo-verl puts in its place"
    if problem:
        raise RuntimeError(
            f"The gtpo-verl plugin is not active in this process: {problem}. Install gtpo-verl into the environment "
            "of every Ray worker (pip install . in a checkout) and leave VERL_USE_EXTERNAL_PLUGINS at `auto`, "
            "or name `gtpo_verl` in it."
        )
