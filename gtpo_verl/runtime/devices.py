"""Which accelerators a scheduler lets a process use, by the variables that Ray reads (`ray._private.accelerators`)."""

from collections.abc import Mapping, MutableMapping

CUDA = "CUDA_VISIBLE_DEVICES"
# One for each kind of accelerator that Ray knows; a test compares.
VARIABLES = (
    CUDA,
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "ONEAPI_DEVICE_SELECTOR",
    "ASCEND_RT_VISIBLE_DEVICES",
    "HABANA_VISIBLE_MODULES",
    "NEURON_RT_VISIBLE_CORES",
    "TPU_VISIBLE_CHIPS",
    "FURIOSA_DEVICES",
    "RBLN_DEVICES",
    "QBRUNTIME_VISIBLE_DEVICES",
    "TT_VISIBLE_DEVICES",
)


def forget(environment: MutableMapping[str, str]) -> None:
    """For a run on CPUs, whose ranks' places Ray would count against them."""
    for name in VARIABLES:
        environment.pop(name, None)


def refuse_rocr(environment: Mapping[str, str]) -> None:
    """Refuses what Ray refuses on every machine, with a page of traceback (`ray/_private/accelerators/amd_gpu.py`).

    Raises:
        ValueError: naming the variable.
    """
    if "ROCR_VISIBLE_DEVICES" in environment:
        value = environment["ROCR_VISIBLE_DEVICES"]
        raise ValueError(
            f"ROCR_VISIBLE_DEVICES={value}: Ray starts nowhere with it; unset it, and on AMD's GPUs export "
            f"HIP_VISIBLE_DEVICES={value} instead"
        )


def visible(environment: Mapping[str, str], ids: list[tuple[str, str]]) -> list[int] | None:
    """Places in `ids` of the NVIDIA GPUs that CUDA would show; None: all.

    Args:
        ids: index and UUID of each GPU, as `nvidia-smi` has them.
    """
    value = environment.get(CUDA)
    if value is None:
        return None
    places: list[int] = []
    for entry in map(str.strip, value.split(",")):
        found = [
            place
            for place, (index, uuid) in enumerate(ids)
            if entry == index or (len(entry) > 4 and uuid.startswith(entry))
        ]
        if len(found) != 1 or found[0] in places:  # CUDA shows what stands before the first entry that names no GPU
            break
        places += found
    return places
