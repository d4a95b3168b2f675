"""Makes a set of runs, several side by side, goes on with what was stopped, and ends in the report.

From the root of the checkout: scripts/reproduce.sh SCALE
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.reproduction.manifest import Manifest, Scale
from benchmarks.reproduction.provenance import ROOT, check, provenance
from benchmarks.reproduction.results import Results
from benchmarks.reproduction.schedule import Schedule

MANIFESTS = ROOT / "benchmarks/manifests"


def reproduce(
    manifest: Manifest,
    scale: Scale,
    results: Results,
    seeds: Sequence[int] | None = None,
    runs: Sequence[str] | None = None,
) -> int:
    """Makes what is missing of a set, or of its `seeds` and `runs`, then the report of all that is there.

    Returns:
        0; 1 where a run failed; 128 + signal where one ended this program, after the runs were ended and reported.
    """
    gtpo_verl = [sys.executable, "-m", "gtpo_verl.cli"]
    planned = list(manifest.planned(scale, seeds, runs))
    facts = provenance(manifest)
    runs_dir = Path("runs", manifest.set)
    check(manifest, facts["source"], results, list(manifest.planned(scale)), runs_dir)
    missing = [run for run in planned if not results.has(run, runs_dir, manifest.steps)]
    print(f"{manifest.set}: {len(planned)} runs, {len(planned) - len(missing)} done", flush=True)
    if missing:
        for command in manifest.prepare:
            subprocess.run([*gtpo_verl, *command.split()], check=True)
    failed = False
    schedule = Schedule([*gtpo_verl, "train"], scale, runs_dir, lambda run: results.begin(run, runs_dir, **facts))
    for run, code, seconds in schedule.finished(missing):
        results.keep(run, runs_dir, **facts, exit_code=code, seconds=round(seconds))
        ending = "done" if code == 0 else f"ended with exit code {code}, see {runs_dir / run.name / 'terminal.txt'}"
        print(f"{run.name}: {ending} ({seconds / 60:.1f} min)", flush=True)
        failed |= code != 0
    for run in planned:  # of an earlier start that was killed before it could
        if results.behind(run, runs_dir):
            results.keep(run, runs_dir, **facts)
    report = [*gtpo_verl, "report", str(results.folder), "--output", str(results.folder / "report")]
    if manifest.sources:
        report += ["--sources", *manifest.sources]
    failed |= subprocess.run(report).returncode != 0
    return int(failed) if schedule.stopped_by is None else 128 + schedule.stopped_by


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/reproduce.sh", description=__doc__.splitlines()[0])
    parser.add_argument("scale", help="of a manifest: cpu, 1gpu, 2gpu, 4gpu")
    parser.add_argument("--manifest", type=Path, help="by default the first in benchmarks/manifests that has the scale")
    parser.add_argument("--results", type=Path, help="folder of logs and report; what is done there is not made again")
    parser.add_argument("--seeds", type=int, nargs="+", help="only these")
    parser.add_argument("--runs", nargs="+", help="only these of the manifest's runs")
    options = parser.parse_args()
    try:
        paths = [options.manifest] if options.manifest else sorted(MANIFESTS.glob("*.yaml"))
        found = [Manifest.read(path) for path in paths]
        manifest = next((one for one in found if options.scale in one.scales), None)
        if manifest is None:
            raise ValueError(f"no scale {options.scale} in {', '.join(map(str, paths))}")
        results = Results(options.results or Path("runs", manifest.set, "results"))
        return reproduce(manifest, manifest.scales[options.scale], results, options.seeds, options.runs)
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
