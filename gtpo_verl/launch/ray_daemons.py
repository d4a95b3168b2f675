"""Notices that Ray's own processes have ended under a running driver, which Ray tells late or in other words."""

import psutil

_NAMES = {"gcs_server": "GCS server", "raylet": "raylet"}


class RayDaemons:
    """The GCS server and the raylet that a driver has started; those of a cluster that it joins are none of its.

    Args:
        driver: process id.
    """

    def __init__(self, driver: int):
        self._driver = driver
        self._seen: dict[str, psutil.Process] = {}

    def lost(self) -> str | None:
        """One sentence once one of them has ended after it was seen; a driver that ends Ray does so too."""
        if not psutil.pid_exists(self._driver):
            return None
        if len(self._seen) < len(_NAMES):  # to list a process's children psutil reads every process of the machine
            self._look()
        for name, process in self._seen.items():
            if not _lives(process):
                return f"Ray's {_NAMES[name]} (process {process.pid}) ended under the run"
        return None

    def _look(self) -> None:
        try:
            children = psutil.Process(self._driver).children()
        except psutil.Error:  # the driver is gone
            return
        for process in children:
            try:
                name = process.name()
            except psutil.Error:
                continue
            if name in _NAMES:
                self._seen.setdefault(name, process)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
