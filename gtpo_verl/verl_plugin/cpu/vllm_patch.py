"""Entry point of group `vllm.general_plugins`: vLLM calls `apply` in each of its processes."""


def apply() -> None:
    """Keeps linear layers reloadable on CPU.

    With oneDNN, vllm/model_executor/layers/utils.py (`dispatch_cpu_unquantized_gemm`) packs every linear layer after
    loading and replaces `layer.weight` by an empty parameter without `weight_loader`; verl's next weight sync then
    fails. Without it vLLM multiplies by the live weight, which can be loaded again any number of times.
    """
    from gtpo_verl.launch.shared_memory import name_after_run
    from gtpo_verl.verl_plugin import cpu

    name_after_run()
    if not cpu.enabled():
        return
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False
