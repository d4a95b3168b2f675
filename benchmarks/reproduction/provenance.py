"""What runs are made with, and that it is the same for all of a set."""

import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from packaging.version import Version

from benchmarks.reproduction.manifest import Manifest, Planned
from benchmarks.reproduction.results import Results

ROOT = Path(__file__).parents[2]
# What runs are made of; the report that is drawn of them in the end is not.
_CODE = ("gtpo_verl", "configs")
_REPORT = "gtpo_verl/report"
# The name of a set says nothing about its runs: some sets begin with copies of another's.
_PROJECT = "trainer.project_name="


def check(
    manifest: Manifest,
    source: str,
    results: Results,
    planned: Sequence[Planned] = (),
    runs_dir: Path = Path("runs"),
) -> None:
    """Refuses to mix code, versions or settings, also within a run that is to go on in `runs_dir`.

    Raises:
        ValueError: naming what differs from the manifest, or from the runs that are there.
    """
    for package, wanted in manifest.versions.items():
        try:
            installed = Version(version(package)).public
        except PackageNotFoundError:
            installed = "nothing"
        if installed != wanted:
            raise ValueError(f"the manifest is for {package} {wanted}; installed is {installed}")
    if manifest.revision is not None and (ROOT / ".git").exists():
        changed = ["git", "-C", str(ROOT), "diff", "--stat", manifest.revision, "--", *_CODE, f":(exclude){_REPORT}"]
        differs = subprocess.run(changed, capture_output=True, text=True, encoding="utf-8", errors="replace")
        if differs.returncode or differs.stdout:
            raise ValueError(f"the manifest is for revision {manifest.revision}:\n{differs.stdout}{differs.stderr}")
    recorded = results.record()
    begun = {run: results.made_with(run, runs_dir) for run in planned if results.stays(run, runs_dir, manifest.steps)}
    sources = [(f"{results.folder}: {name}", facts) for name, facts in recorded.items()]
    sources += [(f"{runs_dir}: {run.name}", facts) for run, facts in begun.items() if facts]
    for name, facts in sources:
        if facts.get("source") not in (source, *manifest.alike):
            raise ValueError(
                f"{name} was made with other code (revision {facts.get('revision')}); runs of a set "
                "are comparable only if all were made with the same"
            )
    for run in planned:
        for folder, facts in ((results.folder, recorded.get(run.name, {})), (runs_dir, begun.get(run, {}))):
            made = set(facts.get("overrides", run.overrides))
            if other := sorted(one for one in made ^ set(run.overrides) if not one.startswith(_PROJECT)):
                raise ValueError(f"{folder}: {run.name} was made with other settings: {', '.join(other)}")


def source_digest() -> str:
    """A hash of the package, without the report, and its presets, which says also without git that runs were made with
    the same code."""
    digest = hashlib.sha256()
    for folder in _CODE:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".yaml", ".jinja") and path.is_file() and ROOT / _REPORT not in path.parents:
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def provenance(manifest: Manifest) -> dict[str, Any]:
    """What a run was made with."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    revision = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", errors="replace"
    ).stdout.strip()
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    cards = (
        subprocess.run(query, capture_output=True, text=True, encoding="utf-8", errors="replace").stdout
        if shutil.which("nvidia-smi")
        else ""
    )
    return {
        "steps": manifest.steps,
        "source": source_digest(),
        "revision": revision or None,
        "versions": {package: version(package) for package in sorted(manifest.versions)},
        "accelerator": next(iter(cards.splitlines()), None),
    }
