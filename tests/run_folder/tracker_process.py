"""What a run does with one backend of `trainer.logger`: checked, prepared, started by verl's Tracking, logged into.

usage: tracker_process.py BACKEND RUN_DIR METRICS   (METRICS: a JSON object)
"""

import json
import sys
from pathlib import Path

from omegaconf import OmegaConf
from verl.utils.tracking import Tracking, ValidationGenerationsLogger

from gtpo_verl.configuration.checks import check_config
from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.run_folder.trackers import prepare_trackers

backend, run_dir, metrics = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
config = compose_config(["algorithm=gtpo_v1", f"trainer.logger=[{backend}]", "trainer.project_name=project"])
check_config(config)
prepare_trackers(run_dir, config.trainer.project_name, config.trainer.logger)
tracking = Tracking("project", "experiment", config.trainer.logger, config=OmegaConf.to_container(config))
assert list(tracking.logger) == [backend]
for step in (1, 2):
    tracking.log(data=metrics, step=step)
ValidationGenerationsLogger("project", "experiment").log([backend], [["prompt", "response", 1.0]], 2)
tracking.finish()
