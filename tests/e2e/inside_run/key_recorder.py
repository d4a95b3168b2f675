"""Notes which configuration keys a process of a run reads.

Each key is written to `$GTPO_VERL_KEYS/<process id>` the first time that verl, TransferQueue or gtpo_verl reads it: as
`a.b.c` from an OmegaConf node, as `a.b.*` where a whole subtree is turned into plain containers, and as `Class:field`
from a dataclass that verl made of a subtree. Ray kills its workers, so nothing is kept for later.
"""

import os
import sys
from pathlib import Path

import wrapt

FOLDER = os.environ["GTPO_VERL_KEYS"]
READERS = ("verl.", "gtpo_verl.", "transfer_queue.")
# Passing a read on, or composing, copying and checking a configuration, is no reading.
PASSING_ON = ("verl.base_config", "verl.utils.config", "gtpo_verl.configuration.composition")

seen: set[str] = set()


def note(key: str) -> None:
    frame = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in PASSING_ON:
        frame = frame.f_back
    reader = frame.f_globals.get("__name__", "") if frame is not None else ""
    if key not in seen and f"{reader}.".startswith(READERS):
        seen.add(key)
        with Path(FOLDER, str(os.getpid())).open("a") as file:
            file.write(f"{key}\n")


@wrapt.when_imported("omegaconf")
def _nodes(module) -> None:
    cls = module.DictConfig
    for name in ("__getattr__", "__getitem__", "get", "pop"):
        method = getattr(cls, name)

        def recorded(self, key, *args, _method=method, **kwargs):
            if isinstance(key, str) and not key.startswith("__"):
                note(self._get_full_key(key))
            return _method(self, key, *args, **kwargs)

        setattr(cls, name, recorded)

    to_container = module.OmegaConf.to_container

    def recorded_whole(*args, **kwargs):
        node = args[0] if args else kwargs["cfg"]
        if module.OmegaConf.is_config(node) and node._get_full_key(None):
            note(f"{node._get_full_key(None)}.*")
        return to_container(*args, **kwargs)

    module.OmegaConf.to_container = staticmethod(recorded_whole)


@wrapt.when_imported("verl.base_config")
def _dataclasses(module) -> None:
    def __getattribute__(self, name):
        if name in type(self).__dataclass_fields__:
            note(f"{type(self).__name__}:{name}")
        return object.__getattribute__(self, name)

    module.BaseConfig.__getattribute__ = __getattribute__
