"""`gtpo-verl data`, as a user starts it, against a server with the hub's layout."""

import json

import pyarrow.parquet
import pytest

from gtpo_verl.rewards.math import compute_score
from gtpo_verl.rewards.prompts import dapo_prompt
from gtpo_verl.tasks.data_files import check_data_file

TRAIN = [("What is $1+1$?", "2"), ("What is $2+2$?", "4"), ("What is $3+3$?", "6")]
VALIDATION = [("Find $x$ with $x=7$.", "7"), ("Find $y$ with $y=8$.", "8")]


def rows_of(path):
    return pyarrow.parquet.read_table(path).to_pylist()


def manifest_of(folder, name):
    return json.loads((folder / f"{name}.manifest.json").read_text())


def left_behind(folder):
    """Everything but the downloads' cache and the home folder."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.relative_to(folder).parts[0][0] != ".")


def test_four_sets_from_a_mirror_in_one_command(data, mirror, samples, tmp_path):
    mirror.publish("dapo-math-17k", samples.dapo(TRAIN * 100))
    mirror.publish("aime24", samples.dapo(VALIDATION * 32))
    mirror.publish("aime25", samples.lines([("Find $z$.", 9)]))
    mirror.publish("math500", samples.lines([("Find $w$.", r"\frac{1}{2}")]))
    result = data("dapo-math-17k", "aime24", "aime25", "math500", HF_ENDPOINT=mirror.address)
    assert result.returncode == 0, result.stderr
    assert {name: check_data_file(tmp_path / f"data/{name}.parquet") for name in ("dapo-math-17k", "aime24")} == {
        "dapo-math-17k": 3,
        "aime24": 2,
    }
    row = rows_of(tmp_path / "data/dapo-math-17k.parquet")[1]
    assert row == {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": dapo_prompt("What is $2+2$?")}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"split": "train", "index": 1, "source_row": 1},
    }
    # Files that verl concatenates need the same columns.
    schemas = [pyarrow.parquet.read_schema(path) for path in sorted((tmp_path / "data").glob("*.parquet"))]
    assert len(schemas) == 4
    assert all(schema.equals(schemas[0]) for schema in schemas)
    assert rows_of(tmp_path / "data/aime25.parquet")[0]["prompt"][0]["content"] == dapo_prompt("Find $z$.")
    half = rows_of(tmp_path / "data/math500.parquet")[0]
    assert compute_score(half["data_source"], "Answer: 0.5", half["reward_model"]["ground_truth"])["acc"] == 1.0


def test_the_report_and_the_manifest_say_what_became_of_the_rows(data, mirror, samples, tmp_path):
    rows = [*TRAIN, ("What  is\n$1+1$?", "2.0"), ("Odd?", "1"), ("Odd?", "2"), (VALIDATION[0][0].upper(), "7")]
    path = mirror.publish("dapo-math-17k", samples.dapo(rows))
    mirror.publish("aime24", samples.dapo(VALIDATION * 32))
    result = data("dapo-math-17k", "aime24", HF_ENDPOINT=mirror.address)
    assert result.returncode == 0, result.stderr
    manifest = manifest_of(tmp_path / "data", "dapo-math-17k")
    assert manifest["counts"] == {
        "rows_in": 7,
        "duplicates": 1,
        "conflicting": 2,
        "contaminating": 1,
        "rows_out": 3,
    }
    assert manifest["dropped"]["conflicting"] == [{"problem": "Odd?", "rows": 2, "answers": {"1": 4, "2": 5}}]
    assert manifest["dropped"]["in_validation"][0]["validation"] == "aime24"
    assert manifest["source"]["commit"] == samples.commit
    assert manifest["source"]["origin"] == mirror.address + path
    assert len(manifest["source"]["sha256"]) == len(manifest["sha256"]) == 64
    for words in ("rows in", "conflicting", "in validation", "contradict", "of aime24", "30 were published"):
        assert words in result.stdout, words
    assert manifest_of(tmp_path / "data", "aime24")["counts"]["duplicates"] == 62


def test_the_same_command_writes_the_same_bytes(data, mirror, samples, tmp_path):
    path = mirror.publish("aime24", samples.dapo(VALIDATION))
    written = []
    for _ in range(2):
        assert data("aime24", HF_ENDPOINT=mirror.address).returncode == 0
        written.append({path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()})
    assert written[0] == written[1]
    assert mirror.ranges(path) == [None]  # the second time it is in the cache


@pytest.mark.parametrize("place", ["file", "folder", "hub folder", "URL", "mirror"])
def test_a_file_may_come_from_elsewhere(data, mirror, samples, tmp_path, place):
    content = samples.dapo(VALIDATION)
    mirror.publish("aime24", content)
    mirror.contents["/some/aime.parquet"] = content
    for name in ("elsewhere/aime-2024.parquet", "hub/BytedTsinghua-SIA/AIME-2024/data/aime-2024.parquet"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(content)
    places = {
        "file": "elsewhere/aime-2024.parquet",
        "folder": "elsewhere",
        "hub folder": "hub",
        "URL": f"{mirror.address}/some/aime.parquet",
        "mirror": f"{mirror.address}/",
    }
    # An endpoint that nothing listens at: the hub must not be asked.
    variables = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": "hf_secret"}
    result = data("aime24", "--from", places[place], "--output", "out", **variables)
    assert result.returncode == 0, result.stderr
    assert "Bearer hf_secret" not in {token for tokens in mirror.tokens.values() for token in tokens}
    assert check_data_file(tmp_path / "out/aime24.parquet") == 2


def test_an_interrupted_download_is_resumed_by_the_next_command(data, mirror, samples, tmp_path):
    content = samples.dapo([(f"What is {number}?", str(number)) for number in range(3000)])
    path = mirror.publish("dapo-math-17k", content)
    mirror.never_beyond[path] = 10_000
    stopped = data("dapo-math-17k", HF_ENDPOINT=mirror.address)
    assert stopped.returncode == 1
    assert f"10,000 of {len(content):,} bytes are kept" in stopped.stderr
    assert left_behind(tmp_path) == []
    mirror.never_beyond.clear()
    mirror.requests.clear()
    resumed = data("dapo-math-17k", HF_ENDPOINT=mirror.address)
    assert resumed.returncode == 0, resumed.stderr
    assert mirror.ranges(path) == ["bytes=10000-"]
    assert check_data_file(tmp_path / "data/dapo-math-17k.parquet") == 3000


def test_a_redirected_download_is_resumed_and_gets_no_token(data, mirror, samples, tmp_path):
    """Large files of the hub lie on another host."""
    content = samples.dapo([(f"What is {number}?", str(number)) for number in range(3000)])
    path = mirror.publish("dapo-math-17k", content)
    mirror.contents["/store"] = content
    mirror.etags["/store"] = "another"
    mirror.redirects[path] = mirror.address.replace("127.0.0.1", "localhost") + "/store"
    mirror.never_beyond["/store"] = 10_000
    variables = {"HF_ENDPOINT": mirror.address, "HF_TOKEN": "hf_secret"}
    stopped = data("dapo-math-17k", **variables)
    assert stopped.returncode == 1
    assert "hf_secret" not in stopped.stdout + stopped.stderr
    mirror.never_beyond.clear()
    mirror.requests.clear()
    resumed = data("dapo-math-17k", **variables)
    assert resumed.returncode == 0, resumed.stderr
    assert mirror.ranges("/store") == ["bytes=10000-"]
    assert mirror.tokens["/store"] == {None}
    assert mirror.tokens[path] == {"Bearer hf_secret"}
    assert manifest_of(tmp_path / "data", "dapo-math-17k")["source"]["commit"] == samples.commit


@pytest.mark.parametrize("names", [["aime24", "dapo-math-17k"], ["dapo-math-17k", "aime24"]])
def test_a_failing_set_leaves_nothing_of_the_others(data, mirror, samples, tmp_path, names):
    mirror.publish("aime24", samples.dapo(VALIDATION))
    mirror.publish("dapo-math-17k", b"PAR1 this is no parquet file PAR1")
    result = data(*names, HF_ENDPOINT=mirror.address)
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "dapo-math-17k.parquet: not a readable parquet file" in result.stderr
    assert left_behind(tmp_path) == []


def test_a_failing_command_keeps_what_was_there(data, mirror, samples, tmp_path):
    mirror.publish("aime24", samples.dapo(VALIDATION))
    assert data("aime24", HF_ENDPOINT=mirror.address).returncode == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    (tmp_path / "bad.parquet").write_bytes(b"")
    assert data("aime24", "--from", "bad.parquet").returncode == 1
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before


def test_validation_problems_of_earlier_files_leave_training(data, mirror, samples, tmp_path):
    mirror.publish("aime24", samples.dapo(VALIDATION))
    mirror.publish("dapo-math-17k", samples.dapo([*TRAIN, (r"Find \(x\) with \( x = 7 \)", "7")]))
    assert data("aime24", HF_ENDPOINT=mirror.address).returncode == 0
    result = data("dapo-math-17k", HF_ENDPOINT=mirror.address)
    assert result.returncode == 0, result.stderr
    assert "of aime24.parquet" in result.stdout
    assert manifest_of(tmp_path / "data", "dapo-math-17k")["counts"]["contaminating"] == 1
    assert check_data_file(tmp_path / "data/dapo-math-17k.parquet") == 3


def test_a_validation_set_that_earlier_training_holds_is_refused(data, mirror, samples, tmp_path):
    mirror.publish("aime24", samples.dapo(VALIDATION))
    mirror.publish("dapo-math-17k", samples.dapo([*TRAIN, VALIDATION[1]]))
    assert data("dapo-math-17k", HF_ENDPOINT=mirror.address).returncode == 0
    refused = data("aime24", HF_ENDPOINT=mirror.address)
    assert refused.returncode == 1
    assert "dapo-math-17k.parquet: row 3: holds 1 problem of aime24" in refused.stderr
    assert not (tmp_path / "data/aime24.parquet").exists()
    assert data("dapo-math-17k", "aime24", HF_ENDPOINT=mirror.address).returncode == 0


def test_contradicting_answers_in_a_validation_set_are_refused(data, samples, tmp_path):
    (tmp_path / "aime24.parquet").write_bytes(samples.dapo([*VALIDATION, (VALIDATION[0][0], "9")]))
    result = data("aime24", "--from", ".")
    assert result.returncode == 1
    assert "aime24.parquet: a problem of this validation set has different answers: '7' in row 0, '9'" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["aime2"], "aime2: unknown data set; did you mean aime2"),
        (["nothing"], "nothing: unknown data set"),
        (["reasoning-gym:chain_sums"], "did you mean chain_sum"),
        (["reasoning-gym:countdown"], "runs the answer as Python"),
        (["reasoning-gym:graph_color", "--rows", "2"], "graph_color states no answer"),
        (["reasoning-gym:composite", "--rows", "2"], "cannot make composite"),
        (["reasoning-gym:rearc", "--rows", "2"], "does not accept its own answers"),
        (["aime24", "--from", "absent"], "absent: no such file or folder"),
        (["aime24", "--from", ".home"], ".home: holds no file of aime24; looked for aime-2024.parquet"),
        (["aime24", "aime25", "--from", "http://127.0.0.1:9/a.parquet"], "one file cannot be aime24 and aime25"),
        (["aime24", "--from", "http://127.0.0.1:9/a.parquet"], "http://127.0.0.1:9/a.parquet: cannot be reached"),
        (["aime24", "aime25", "--revision", "main"], "--revision"),
        (["reasoning-gym:chain_sum", "--from", "."], "--from: none of these"),
        (["reasoning-gym:chain_sum", "--rows", "0"], "--rows"),
    ],
)
def test_requests_that_make_no_sense_are_one_line(data, tmp_path, arguments, words):
    result = data(*arguments)
    assert result.returncode == 1
    assert words in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert left_behind(tmp_path) == []


def test_an_unreachable_hub_and_an_unknown_revision_are_one_line(data, mirror, samples, tmp_path):
    result = data("aime24", HF_ENDPOINT="http://127.0.0.1:9")
    assert result.returncode == 1
    assert "BytedTsinghua-SIA/AIME-2024@main: data/aime-2024.parquet: http://127.0.0.1:9" in result.stderr
    assert result.stderr.count("\n") == 1
    mirror.publish("aime24", samples.dapo(VALIDATION))
    result = data("aime24", "--revision", "v9", HF_ENDPOINT=mirror.address)
    assert result.returncode == 1
    assert "@v9" in result.stderr
    assert "404" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("variables", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}])
def test_a_file_in_the_hubs_own_cache_needs_no_network(data, samples, tmp_path, variables):
    snapshot = tmp_path / ".hf/hub/datasets--BytedTsinghua-SIA--AIME-2024"
    (snapshot / "refs").mkdir(parents=True)
    (snapshot / "refs/main").write_text(samples.commit)
    (snapshot / f"snapshots/{samples.commit}/data").mkdir(parents=True)
    (snapshot / f"snapshots/{samples.commit}/data/aime-2024.parquet").write_bytes(samples.dapo(VALIDATION))
    result = data("aime24", HF_HOME=str(tmp_path / ".hf"), **variables)
    assert result.returncode == 0, result.stderr
    assert manifest_of(tmp_path / "data", "aime24")["source"]["commit"] == samples.commit


def test_a_task_of_reasoning_gym(data, tmp_path):
    result = data("reasoning-gym:word_sorting", "--rows", "30", "--validation-rows", "5", "--seed", "3")
    assert result.returncode == 0, result.stderr
    train, validation = (
        rows_of(tmp_path / f"data/reasoning-gym-word_sorting-{split}.parquet") for split in ("train", "validation")
    )
    assert (len(train), len(validation)) == (30, 5)
    questions = [{row["prompt"][-1]["content"] for row in rows} for rows in (train, validation)]
    assert not questions[0] & questions[1]
    assert manifest_of(tmp_path / "data", "reasoning-gym-word_sorting-train")["source"]["seed"] == 3
    from gtpo_verl.tasks.rewards import compute_score as reward

    row = train[0]
    truth = row["reward_model"]["ground_truth"]
    assert reward(row["data_source"], f"So: <answer>{truth}</answer>", truth, row["extra_info"])["acc"] == 1.0
    assert reward(row["data_source"], truth, truth, row["extra_info"])["answered"] == 0.0
