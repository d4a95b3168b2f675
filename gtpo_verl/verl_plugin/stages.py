"""What a starting trainer is busy with, for the person at the terminal (`runtime.stage`)."""

import logging

from gtpo_verl.runtime import stage

# verl's trainer logs what it has finished; what it begins then is this (verl/trainer/ppo/v1/trainer_base.py, `_setup`).
_NEXT = {
    "create worker group ": "loading the actor's model",
    "actor and ref model engine initialized": "starting the reward workers",
    "reward loop manager initialized": "starting vLLM",
    "checkpoint engine manager initialized": "handing the weights to vLLM",
}


class StageOfLog(logging.Handler):
    """Says what follows on a message of verl's trainer."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        for finished, following in _NEXT.items():
            if message.startswith(finished):
                stage.say(following)
