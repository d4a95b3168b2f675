"""Kills or stops one process of the run, from within, once a phase of a step has begun.

`$GTPO_VERL_FAULT` holds JSON: `signal`, `victim` (a key of VICTIMS), `phase`, `occurrence` of the phase in this
process, `delay` in seconds, and `record`, a file for what was done.
"""

import json
import os
import threading
import time
from pathlib import Path

import psutil
import wrapt

FAULT = json.loads(os.environ["GTPO_VERL_FAULT"])

# Words of the class of a Ray actor, or of a command line.
VICTIMS = {
    "driver": "-m gtpo_verl.driver.main",
    "task runner": "actor TaskRunner",
    "actor": "WorkerDict",
    "vllm server": "actor BatchingServer",
    "agent loop": "AgentLoopWorker",
    "reward worker": "RewardLoopWorker",
    "queue controller": "actor TransferQueueController",
    "queue storage": "actor SimpleStorageUnit",
    "raylet": "raylet/raylet ",
    "gcs": "gcs/gcs_server ",
    "fork server": "fork_server.server ",
}
# vLLM's two, forked without a title of their own after the server itself.
FORKED = {"engine": 1, "vllm worker": 2}


def processes() -> list[tuple[int, str]]:
    """Of this run: process ids, and command lines or titles, those of actors before them."""
    import ray
    from ray._private import state

    job = ray.JobID(bytes.fromhex(ray.get_runtime_context().get_job_id()))
    actors = {actor["Pid"]: f"actor {actor['ActorClassName']} " for actor in state.actors(job_id=job).values()}
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("GTPO_VERL_TMP") == os.environ["GTPO_VERL_TMP"]:
                found.append((process.pid, actors.get(process.pid, "") + " ".join(process.cmdline())))
        except psutil.Error:
            continue
    return found


def victim(name: str) -> int:
    if name == "supervisor":
        return psutil.Process(victim("driver")).ppid()
    everybody = processes()
    words = VICTIMS["fork server" if name in FORKED else name]
    # In the order of their starts, which is not that of their ids once those have begun anew.
    matching = sorted(
        (pid for pid, title in everybody if words in title), key=lambda p: psutil.Process(p).create_time()
    )
    try:
        return matching[FORKED.get(name, 0)]
    except IndexError:
        Path(FAULT["record"]).write_text(json.dumps({"error": f"no {name}", "among": everybody}))
        raise


def strike() -> None:
    pid = victim(FAULT["victim"])
    title = " ".join(psutil.Process(pid).cmdline())
    if wait := FAULT["delay"]:
        time.sleep(wait)
    Path(FAULT["record"]).write_text(json.dumps({"pid": pid, "title": title, "time": time.time()}))
    os.kill(pid, FAULT["signal"])


@wrapt.when_imported("gtpo_verl.verl_plugin.run_watch")
def _watch(module) -> None:
    enter_phase = module.RunWatch.enter_phase
    seen = [0]

    def entered(self, phase: str) -> None:
        enter_phase(self, phase)
        if phase == FAULT["phase"]:
            seen[0] += 1
            if seen[0] == FAULT["occurrence"]:
                threading.Thread(target=strike, daemon=True).start()

    module.RunWatch.enter_phase = entered
