"""verl's own FSDP engines, registered for the device `cpu` too (verl registers them for cuda and npu)."""

from types import ModuleType

import wrapt


def install() -> None:
    wrapt.register_post_import_hook(_register, "verl.workers.engine.fsdp.transformer_impl")


def _register(fsdp: ModuleType) -> None:
    from verl.workers.engine.base import EngineRegistry

    backends = ["fsdp", "fsdp2"]
    EngineRegistry.register(model_type="language_model", backend=backends, device="cpu")(fsdp.FSDPEngineWithLMHead)
    EngineRegistry.register(model_type="value_model", backend=backends, device="cpu")(fsdp.FSDPEngineWithValueHead)
