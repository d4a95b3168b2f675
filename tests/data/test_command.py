"""`gtpo-verl data`, as a user starts it, against a server with the hub's layout."""

import functools
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow.parquet
import pytest

from gtpo_verl.data.sources import near_matches
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


@pytest.mark.parametrize("endpoint", ["/a/prefix", "/a/prefix/"])
@pytest.mark.parametrize("way", ["HF_ENDPOINT", "--from"])
def test_a_mirror_may_have_a_prefix(data, mirror, samples, tmp_path, way, endpoint):
    path = mirror.publish("aime24", samples.dapo(VALIDATION), "/a/prefix")
    place = mirror.address + endpoint
    if way == "HF_ENDPOINT":
        result = data("aime24", HF_ENDPOINT=place)
    else:
        result = data("aime24", "--from", place, HF_ENDPOINT=f"{mirror.address}/not/asked")
    assert result.returncode == 0, result.stderr
    assert list((tmp_path / ".home").iterdir()) == []
    assert {asked for _, asked, _ in mirror.requests} == {path}
    assert manifest_of(tmp_path / "data", "aime24")["source"]["origin"] == mirror.address + path


def test_a_mirror_that_is_a_plain_file_server_is_enough(data, mirror, samples, tmp_path):
    """No commit, and an ETag that is no digest."""
    content = samples.dapo([(f"What is {number}?", str(number)) for number in range(3000)])
    path = mirror.publish("dapo-math-17k", content)
    mirror.headers[path] = {"X-Repo-Commit": "", "ETag": '"5f-1"'}
    mirror.never_beyond[path] = 10_000
    assert data("dapo-math-17k", HF_ENDPOINT=mirror.address).returncode == 1
    mirror.never_beyond.clear()
    mirror.requests.clear()
    result = data("dapo-math-17k", HF_ENDPOINT=mirror.address)
    assert result.returncode == 0, result.stderr
    assert mirror.ranges(path) == ["bytes=10000-"]
    assert not manifest_of(tmp_path / "data", "dapo-math-17k")["source"]["commit"]


def test_secrets_of_an_address_are_not_written(data, mirror, samples, tmp_path):
    mirror.contents["/a.parquet?signature=secret"] = samples.dapo(VALIDATION)
    place = mirror.address.replace("//", "//user:secret@") + "/a.parquet?signature=secret"
    result = data("aime24", "--from", place)
    assert result.returncode == 0, result.stderr
    assert manifest_of(tmp_path / "data", "aime24")["source"]["origin"] == mirror.address + "/a.parquet"
    assert "secret" not in result.stdout + result.stderr
    for failing in (False, True):
        if failing:
            mirror.failing.add(mirror.publish("aime24", b""))
        result = data("aime24", "--output", "out", HF_ENDPOINT=mirror.address.replace("//", "//user:secret@"))
        assert result.returncode == 1
        assert "secret" not in result.stdout + result.stderr


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


def test_a_name_is_not_offered_in_its_own_place() -> None:
    """A task that is known and refused, such as countdown."""
    assert near_matches("countdown", ["countdown", "count_bits", "zebra"]) == "; did you mean count_bits?"
    assert near_matches("countdown", ["countdown"]) == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["aime2"], "aime2: unknown data set; did you mean aime2"),
        (["AIME24"], "AIME24: unknown data set; did you mean aime24"),
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
        (["reasoning-gym:chain_sum", "--rows", "0"], "--rows 0: too small"),
        (["aime24", "--rows", "10"], "--rows: for tasks of reasoning-gym only"),
        (["aime24", "--seed", "1"], "--seed: for tasks of reasoning-gym only"),
        (["aime24", "--from", ".home", "--revision", "v1"], "--revision: .home is no hub"),
        (["aime24", "--revision", ""], "--revision: empty"),
        (["aime24", "--from", ""], "--from ''"),
        (["aime24", "--from", "http://"], "--from 'http://'"),
        (["aime24", "--from", "http://[/a.parquet"], "--from 'http://[/a.parquet'"),
        (["aime24", "--output", "/dev/null"], "--output /dev/null: not a folder"),
        (["aime24", "--output", "/dev/null/x"], "--output /dev/null/x: /dev/null"),
    ],
)
def test_requests_that_make_no_sense_are_one_line(data, tmp_path, arguments, words):
    result = data(*arguments)
    assert result.returncode == 1
    assert words in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert left_behind(tmp_path) == []


def test_a_file_of_the_user_is_not_replaced(data, mirror, samples, tmp_path):
    """The published file under the name of the one to be made, as one who downloaded it by hand has it."""
    (tmp_path / "data").mkdir()
    mine = tmp_path / "data/aime24.parquet"
    mine.write_bytes(samples.dapo(VALIDATION * 32))
    mirror.publish("aime24", samples.dapo(VALIDATION))
    for arguments in (["--from", "data"], ["--from", "data/aime24.parquet"], []):
        result = data("aime24", *arguments, HF_ENDPOINT=mirror.address)
        assert result.returncode == 1
        assert "data/aime24.parquet: not written by this command" in result.stderr
    assert mirror.requests == []
    assert mine.read_bytes() == samples.dapo(VALIDATION * 32)
    assert data("aime24", "--from", "data", "--output", "out").returncode == 0
    result = data("aime24", "--from", "out", "--output", "out")
    assert result.returncode == 1
    assert "out/aime24.parquet: would be replaced by what is read from it" in result.stderr
    assert manifest_of(tmp_path / "out", "aime24")["counts"]["duplicates"] == 62


@pytest.mark.parametrize("obstacle", ["dapo-math-17k.parquet", "dapo-math-17k.manifest.json"])
def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_replaced(data, samples, tmp_path, obstacle):
    (tmp_path / "aime24.parquet").write_bytes(samples.dapo(VALIDATION))
    (tmp_path / "dapo-math-17k.parquet").write_bytes(samples.dapo(TRAIN))
    (tmp_path / "out" / obstacle).mkdir(parents=True)
    result = data("aime24", "dapo-math-17k", "--from", ".", "--output", "out")
    assert result.returncode == 1
    assert f"out/{obstacle}: not written by this command" in result.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == [obstacle]


def test_a_file_that_cannot_be_compared_is_mentioned(data, mirror, samples, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/other.parquet").write_bytes(samples.dapo(VALIDATION))
    mirror.publish("aime24", samples.dapo(VALIDATION))
    result = data("aime24", HF_ENDPOINT=mirror.address)
    assert result.returncode == 0, result.stderr
    assert "not compared with other.parquet" in result.stdout


def test_the_same_command_several_times_at_once(data, mirror, samples, tmp_path):
    content = samples.dapo([(f"What is {number}?", str(number)) for number in range(3000)])
    path = mirror.publish("dapo-math-17k", content)
    mirror.publish("aime24", samples.dapo(VALIDATION))
    mirror.cut_after[path] = len(content) // 20
    with ThreadPoolExecutor(3) as threads:
        commands = [
            threads.submit(data, *names, HF_ENDPOINT=mirror.address)
            for names in (["dapo-math-17k"], ["dapo-math-17k"], ["aime24", "dapo-math-17k"])
        ]
        results = [command.result() for command in commands]
    assert [result.returncode for result in results] == [0, 0, 0], [result.stderr for result in results]
    assert len(mirror.ranges(path)) == 21
    assert check_data_file(tmp_path / "data/dapo-math-17k.parquet") == 3000
    names = ["aime24.manifest.json", "aime24.parquet", "dapo-math-17k.manifest.json", "dapo-math-17k.parquet"]
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == names


def test_ctrl_c_is_one_line_and_the_download_goes_on_later(data, mirror, samples, tmp_path):
    content = samples.dapo([(f"What is {number}?", str(number)) for number in range(3000)])
    path = mirror.publish("dapo-math-17k", content)
    mirror.never_beyond[path] = 10_000
    command = data.start("dapo-math-17k", HF_ENDPOINT=mirror.address)
    deadline = time.monotonic() + 60
    while len(mirror.ranges(path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    output, errors = command.communicate(timeout=240)
    assert (command.returncode, output, errors.count("\n")) == (130, "", 1), errors
    assert errors.startswith("interrupted")
    assert left_behind(tmp_path) == []
    mirror.never_beyond.clear()
    mirror.requests.clear()
    assert data("dapo-math-17k", HF_ENDPOINT=mirror.address).returncode == 0
    assert mirror.ranges(path) == ["bytes=10000-"]


def test_a_folder_that_cannot_be_written(data, samples, tmp_path):
    """Root may write anywhere, so the command runs without that privilege."""
    (tmp_path / "aime.parquet").write_bytes(samples.dapo(VALIDATION))
    (tmp_path / ".home").mkdir()
    output = tmp_path.parent / f"{tmp_path.name}-output"
    output.mkdir()
    powerless = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if os.geteuid() == 0 else []
    tmp_path.chmod(0o555)
    try:
        run = functools.partial(data, before=powerless)
        refused = run("aime24", "--from", "aime.parquet")
        # A read-only working directory is no obstacle where nothing has to be downloaded.
        written = run("aime24", "--from", "aime.parquet", "--output", str(output))
    finally:
        tmp_path.chmod(0o755)
    assert refused.returncode == 1
    assert refused.stderr == f"error: --output data: {tmp_path} cannot be written\n"
    assert written.returncode == 0, written.stderr


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


def test_a_damaged_or_older_file_in_the_hubs_own_cache_is_not_used(data, mirror, samples, tmp_path):
    snapshot = tmp_path / ".hf/hub/datasets--BytedTsinghua-SIA--AIME-2024"
    (snapshot / "refs").mkdir(parents=True)
    (snapshot / "refs/main").write_text(samples.commit)
    (snapshot / f"snapshots/{samples.commit}/data").mkdir(parents=True)
    (snapshot / f"snapshots/{samples.commit}/data/aime-2024.parquet").write_bytes(samples.dapo(VALIDATION[:1]))
    path = mirror.publish("aime24", samples.dapo(VALIDATION))
    for headers in ({}, {"X-Repo-Commit": ""}):
        mirror.headers[path] = headers
        result = data("aime24", HF_HOME=str(tmp_path / ".hf"), HF_ENDPOINT=mirror.address)
        assert result.returncode == 0, result.stderr
        assert check_data_file(tmp_path / "data/aime24.parquet") == 2


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
