"""verl's FSDP engine with exact token log-probabilities and entropies (`gtpo_verl.entropy`).

Old log-probabilities (the log-prob pass) and new ones (the update) come out of the same arithmetic, so that with an
unchanged policy every ratio is 1. verl's own code stays in charge of everything else: inputs, padding, Ulysses
gathering, micro-batches, optimizer.
"""

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import wrapt

from gtpo_verl.configuration.preparation import ENGINE_VENDOR
from gtpo_verl.entropy import logprob_entropy
from gtpo_verl.verl_plugin import jagged
from gtpo_verl.verl_plugin.restoring import configured

_FSDP_MODULE = "verl.workers.engine.fsdp.transformer_impl"
_BACKENDS = ["fsdp", "fsdp2"]
_DEVICES = ["cuda", "npu", "cpu"]
# The floor verl puts under a temperature before dividing by it.
_LOWEST_TEMPERATURE = 1e-8

_hooked = False


def register_engines() -> None:
    """Makes the engine known to verl as soon as verl imports its FSDP engines; a plain import of verl costs no more.

    verl then picks it in every process whose environment says ``VERL_ENGINE_VENDOR=gtpo_verl``
    (`configuration.preparation` sets that for ``gtpo_verl.fused_entropy``), for the language models of the backends
    ``fsdp`` and ``fsdp2`` on ``cuda``, ``npu`` and ``cpu``. Critics, and backends that have no engine of this vendor,
    keep verl's; so does every process without the variable. Safe to call twice.
    """
    global _hooked
    if not _hooked:
        _hooked = True
        wrapt.register_post_import_hook(_register, _FSDP_MODULE)


def _register(fsdp: ModuleType) -> None:
    from verl.workers.engine.base import EngineRegistry

    engine = type("FusedEntropyFSDPEngine", (FusedEntropy, fsdp.FSDPEngineWithLMHead), {"__module__": __name__})
    EngineRegistry.register(model_type="language_model", backend=_BACKENDS, device=_DEVICES, vendor=ENGINE_VENDOR)(
        engine
    )


class FusedEntropy:
    """What differs from verl's ``FSDPEngineWithLMHead``, as a mixin, so that verl is imported only when it is used."""

    module: Any
    use_ulysses_sp: bool
    optimizer: Any
    optimizer_config: Any
    lr_scheduler: Any

    def initialize(self) -> None:
        """As verl's, and batches are handled by `jagged` from here on."""
        jagged.install_in_workers()
        super().initialize()  # type: ignore[misc]

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """As verl's, and the optimizer's options stay those of the configuration."""
        others = self.optimizer_config.override_optimizer_config or {} if self.optimizer_config else {}
        with configured(self.optimizer, self.lr_scheduler, others):
            super().load_checkpoint(*args, **kwargs)  # type: ignore[misc]

    def prepare_model_inputs(self, micro_batch: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """As verl's, and flash attention is told where each response begins and how long the longest is.

        It would look for the zeros in `position_ids`, in every layer: two waits for the GPU each, during which nothing
        is launched.
        """
        from verl.utils import tensordict_utils as tu

        inputs, output_args = super().prepare_model_inputs(micro_batch)  # type: ignore[misc]
        packed = tu.get_non_tensor_data(data=micro_batch, key="use_remove_padding", default=True)
        fused = tu.get_non_tensor_data(data=micro_batch, key="use_fused_kernels", default=False)
        if packed and not fused and inputs["position_ids"].dim() == 2 and self._takes_spans():
            inputs.update(packed_spans(micro_batch["input_ids"], output_args["pad_size"]))
        return inputs, output_args

    def _takes_spans(self) -> bool:
        """Whether the model uses flash attention and hands on what it does not know, as those of transformers do. Some
        that see images hand it on to the attention of the images too."""
        if not hasattr(self, "_spans_are_taken"):
            model = getattr(self.module, "_fsdp_wrapped_module", self.module)
            if hasattr(model, "get_base_model"):  # peft's, which takes whatever it is given
                model = model.get_base_model()
            attention = getattr(model.config, "_attn_implementation", None) or ""
            parameters = inspect.signature(model.forward).parameters.values()
            named = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
            of_text = model.config.get_text_config() is model.config
            # Linear attention takes them too, but sees no more than the rank's own tokens.
            linear = "linear_attention" in (getattr(model.config, "layer_types", None) or ())
            whole = not (linear and self.use_ulysses_sp)
            self._spans_are_taken = named and of_text and whole and "flash_attention" in attention
        return self._spans_are_taken

    def prepare_model_outputs(
        self, output: Any, output_args: dict[str, Any], micro_batch: Any, logits_processor_func: Callable | None
    ) -> dict[str, torch.Tensor]:
        """Log-probabilities (with gradient) and entropies (without one) of the micro-batch, jagged ``[batch, tokens]``.

        verl's method already knows how to gather, unpad and nest values that a fused kernel has computed, so it is
        given ours as if they came from one.

        What this engine does not compute stays verl's: its own fused kernels (``use_fused_kernels``) and pure
        distillation altogether; ``sum_pi_squared``, top-k distillation and, where ``actor.entropy_coeff`` asks for
        it, an entropy with a gradient beside our log-probabilities.
        """
        from verl.utils import tensordict_utils as tu

        def flag(key: str, default: bool = False) -> bool:
            return tu.get_non_tensor_data(data=micro_batch, key=key, default=default)

        stock = super().prepare_model_outputs  # type: ignore[misc]
        if flag("use_fused_kernels"):
            warnings.warn(
                "actor_rollout_ref.model.use_fused_kernels=True: verl's fused kernels compute the log-probabilities "
                "and entropies; gtpo_verl.fused_entropy has no effect",
                stacklevel=2,
            )
            return stock(output, output_args, micro_batch, logits_processor_func)
        if flag("distillation_only"):
            return stock(output, output_args, micro_batch, logits_processor_func)

        calculate_entropy = flag("calculate_entropy")
        trained_entropy = calculate_entropy and _entropy_has_gradient(logits_processor_func)
        shares_logits = trained_entropy or flag("calculate_sum_pi_squared") or flag("distillation_use_topk")
        log_prob, entropy = _log_prob_and_entropy(
            output.logits,
            output_args,
            micro_batch["input_ids"],
            remove_padding=flag("use_remove_padding", True),
            inplace_backward=not shares_logits,
        )

        with _flags(micro_batch, use_fused_kernels=True, calculate_sum_pi_squared=False, distillation_use_topk=False):
            values = SimpleNamespace(log_probs=log_prob, entropy=entropy)
            ours = stock(values, output_args, micro_batch, logits_processor_func)
        if not shares_logits:
            return ours
        if trained_entropy:
            del ours["entropy"]
        return {**stock(output, output_args, micro_batch, logits_processor_func), **ours}


def packed_spans(input_ids: torch.Tensor, padding: int) -> dict[str, Any]:
    """Where the responses of a packed micro-batch begin, by the names of transformers' `FlashAttentionKwargs`.

    Args:
        input_ids: jagged (batch, *).
        padding: tokens after the last response, which attend to one another.

    Returns:
        `cu_seq_lens_q` and `cu_seq_lens_k` (batch + 1 or, with padding, + 2,) int32; `max_length_q` and `max_length_k`.
    """
    offsets = input_ids.offsets()  # type: ignore[attr-defined]  # of jagged tensors
    longest = max(jagged.longest(input_ids), padding)
    if padding:
        offsets = torch.cat((offsets, offsets[-1:] + padding))
    offsets = offsets.to(torch.int32)
    return {"cu_seq_lens_q": offsets, "cu_seq_lens_k": offsets, "max_length_q": longest, "max_length_k": longest}


@contextlib.contextmanager
def _flags(micro_batch: Any, **flags: bool) -> Iterator[None]:
    """Sets flags of the batch for a while; the loss sees it as it was.

    In place, since even a shallow copy of a real batch takes tenths of a second: of its prompts, ids and rewards, which
    are no tensors, every row is an object of its own.
    """
    from verl.utils import tensordict_utils as tu

    before = {name: micro_batch.get(name, None) for name in flags}
    tu.assign_non_tensor(micro_batch, **flags)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del micro_batch[name]
            else:
                micro_batch[name] = value


def _entropy_has_gradient(loss_function: Callable | None) -> bool:
    """Whether the loss may differentiate the entropy: the actor's does when ``entropy_coeff`` is not 0."""
    if not torch.is_grad_enabled():
        return False
    # verl hands its losses their configuration with functools.partial. Of any other loss nothing is known.
    config = getattr(loss_function, "keywords", {}).get("config")
    return getattr(config, "entropy_coeff", None) != 0


def _log_prob_and_entropy(
    logits: torch.Tensor,
    output_args: dict[str, Any],
    input_ids: Any,
    *,
    remove_padding: bool,
    inplace_backward: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[1, tokens]`` of the packed micro-batch, or ``[batch, longest]`` of the padded one."""
    from torch.distributed.tensor import DTensor

    if isinstance(logits, DTensor):
        logits = logits.full_tensor()
    labels = output_args["input_ids_rmpad_rolled"]  # the token after each, packed
    if remove_padding:
        labels = labels.view(logits.shape[:-1])
    else:
        lengths = input_ids.offsets().diff()
        inside = torch.arange(logits.shape[1], device=lengths.device) < lengths.unsqueeze(1)
        labels = labels.new_zeros(logits.shape[:-1]).masked_scatter_(inside, labels)

    if output_args.get("temperature_is_one", False):
        return logprob_entropy(logits, labels, inplace_backward=inplace_backward)
    temperature: torch.Tensor = output_args["temperature_rmpad" if remove_padding else "temperature"]
    if not remove_padding:
        temperature = temperature.unsqueeze(1)  # one per response
    temperature = temperature.clamp(min=_LOWEST_TEMPERATURE).expand(labels.shape)
    return logprob_entropy(logits, labels, temperature, inplace_backward=inplace_backward)
