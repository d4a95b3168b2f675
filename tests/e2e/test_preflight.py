"""The preflight on two Ray nodes of one machine, the second with a file system of its own under one path."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_cluster import Cluster
from training_run import COMMAND, ROOT, SMALL

from gtpo_verl import tasks

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# A shell that lays one folder over another, for itself and what it starts, puts packages before the others, and goes on
# as the command behind it.
_INSIDE = 'mount --bind "$1" "$2" && export PYTHONPATH="$3:$PYTHONPATH" && shift 3 && exec "$@"'
_UNSHARE = ["unshare", "--map-root-user", "--mount"]


class Nodes:
    """A cluster whose second node sees `theirs` where the first sees `ours`; `everywhere` is the same for both."""

    def __init__(self, folder: Path) -> None:
        self.ours, self.theirs, self.everywhere = (folder / name for name in ("ours", "theirs", "everywhere"))
        self.packages = folder / "packages"
        for path in (self.ours, self.theirs, self.everywhere, self.packages, folder / "home"):
            path.mkdir(parents=True)
        prepared = tasks.prepare("arithmetic", ROOT / ".cache/gtpo-verl")
        self.data = shutil.copytree(Path(prepared.train).parent, self.everywhere / "task")
        for node in (self.ours, self.theirs):
            shutil.copytree(prepared.model, node / "model")
        inside = [*_UNSHARE, "sh", "-c", _INSIDE, "sh", str(self.theirs), str(self.ours), str(self.packages)]
        self.cluster = Cluster(folder / "home", inside)

    def run(self, command: str, model: Path, runs: Path, *overrides: str) -> tuple[int, str]:
        """Exit code and output of `gtpo-verl preflight` or `train` for both nodes, started beside the first."""
        settings = {
            "model": "tiny",
            "scale": "cpu_cluster",
            "gtpo_verl.task": "null",
            "gtpo_verl.run_dir": runs / "run",
            "actor_rollout_ref.model.path": model,
            "data.train_files": self.data / "train.parquet",
            "data.val_files": self.data / "val.parquet",
        }
        arguments = [f"{key}={value}" for key, value in settings.items()]
        result = subprocess.run(
            [COMMAND, command, *arguments, *SMALL, *overrides],
            env={**self.cluster.environment, "RAY_ADDRESS": self.cluster.gcs, "COLUMNS": "400"},
            cwd=self.everywhere,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        return result.returncode, result.stdout


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    if subprocess.run([*_UNSHARE, "true"], capture_output=True).returncode != 0:
        pytest.skip("no mount namespace is granted (unshare): two nodes of one machine then share all files")
    nodes = Nodes(tmp_path_factory.mktemp("nodes"))
    try:
        yield nodes
    finally:
        nodes.cluster.stop()


Row = tuple[str, str, str]


def rows(output: str, status: str) -> list[Row]:
    """Where, what and detail of the table's lines with this status."""
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if line.startswith("│")]
    return [(where, what, detail) for where, what, state, detail, _ in cells if state == status]


def test_a_faulty_node_is_named(nodes: Nodes) -> None:
    """A shard that was not copied, another verl, and a run folder that is that node's own."""
    shard = nodes.theirs / "model/model.safetensors"
    other_verl = nodes.packages / "verl-0.9.0.dist-info"
    other_verl.mkdir()
    (other_verl / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.9.0\n")
    shard.rename(nodes.theirs / "elsewhere")
    try:
        code, output = nodes.run("preflight", nodes.ours / "model", nodes.ours / "runs")
    finally:
        (nodes.theirs / "elsewhere").rename(shard)
        shutil.rmtree(other_verl)
    assert code == 1, output
    red = {what: (where, detail) for where, what, detail in rows(output, "fail")}
    assert red.keys() == {"versions", "plugin", "model files", "run folder"}
    assert len({where for where, _ in red.values()}) == 1
    assert "verl 0.9.0, the driver has 0.9.1" in red["versions"][1]
    assert "verl 0.9.0" in red["plugin"][1]
    assert f"{nodes.ours}/model: no weights" in red["model files"][1]
    assert "not the folder that the driver sees" in red["run folder"][1]
    (good,) = {where for where, what, _ in rows(output, "ok") if what == "model files"}
    assert good != red["model files"][0]


@pytest.mark.slow
def test_two_good_nodes(nodes: Nodes) -> None:
    before = sorted(nodes.everywhere.rglob("*"))
    code, output = nodes.run("preflight", nodes.ours / "model", nodes.everywhere / "runs")
    assert code == 0, output
    assert rows(output, "fail") == []
    assert len([what for _, what, _ in rows(output, "ok") if what == "plugin"]) == 2
    assert [
        path for path in sorted(nodes.everywhere.rglob("*")) if path not in before and ".cache" not in path.parts
    ] == []


@pytest.mark.slow
def test_a_job_is_refused_before_anything_starts_and_not_when_the_preflight_is_off(nodes: Nodes) -> None:
    """The second node is dead: the preflight says so; without it, verl does, when it asks for the GPUs."""
    nodes.cluster.kill_second()
    nodes.cluster.wait_for(1)
    runs = nodes.everywhere / "runs"
    code, output = nodes.run("preflight", nodes.ours / "model", runs)
    assert code == 1, output
    (red,) = rows(output, "fail")
    assert red == ("driver", "Ray GPUs", "asked for 2 nodes with 1 each; living nodes: 1 with 1")
    assert [what for _, what, _ in rows(output, "warn")] == ["Ray node"]

    code, output = nodes.run("train", nodes.ours / "model", runs)
    assert code == 1, output
    assert "error: RuntimeError: the preflight found" in output
    assert "trainer.nnodes" in output
    assert list(runs.rglob("train.log")) == []
    assert list(runs.rglob("checkpoints")) == []

    code, output = nodes.run("train", nodes.ours / "model", runs, "gtpo_verl.preflight=false")
    assert code == 1, output
    assert "preflight" not in output
    assert "less than total desired GPUs 2" in output
