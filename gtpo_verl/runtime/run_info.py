"""What the driver tells the supervisor once it has composed its configuration: one JSON file in the run's temporary
folder, whose path is the environment variable `GTPO_VERL_RUN_INFO`."""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gtpo_verl.runtime.whole_file import whole_file

VARIABLE = "GTPO_VERL_RUN_INFO"


@dataclass(frozen=True)
class RunInfo:
    """Where a run writes (absolute paths), and which steps it will train.

    Attributes:
        total_steps: None where it follows from the data's length.
        resumed_step: step of the checkpoint it goes on from; 0 for a new run.
        changes: of a run that goes on, in its configuration since `config.yaml` was written: `key: old -> new`.
        remarks: lines for the person at the terminal.
        validates_only: whether it trains no step, but validates the checkpoint (`trainer.val_only`).
    """

    name: str
    run_dir: str
    log: str
    metrics: str
    checkpoints: str
    total_steps: int | None
    resumed_step: int = 0
    changes: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    validates_only: bool = False

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do."""
        if self.validates_only:
            return False
        return self.total_steps is not None and self.resumed_step >= self.total_steps

    def publish(self) -> None:
        """Writes the file the supervisor waits for; does nothing for a driver that was started without one."""
        target = os.environ.get(VARIABLE)
        if target is None:
            return
        with whole_file(Path(target)) as part:
            part.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> "RunInfo | None":
        return cls(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
