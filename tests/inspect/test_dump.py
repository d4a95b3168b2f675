"""Steps on disk: what was written comes back; bounded, whole or not there, and none of a branch that was left."""

import os

import numpy as np
import pyarrow.parquet
import pytest

from gtpo_verl.inspect import InspectError, dump
from gtpo_verl.inspect.page import encode
from gtpo_verl.inspect.responses import Step

ANY_SIZE = 2**40


def test_a_step_comes_back_as_it_was(make_step, tmp_path) -> None:
    step = make_step(7)
    masks = [np.arange(len(one.tokens)) % 5 != 0 for one in step.responses]
    rows = [type(one)(**{**vars(one), "mask": mask}) for one, mask in zip(step.responses, masks, strict=True)]
    rows[0] = type(rows[0])(**{**vars(rows[0]), "length_penalty": None, "prompt": "</script>\u202e \x00 'ß"})
    step = Step(7, step.algorithm, step.settings, step.pieces, rows)
    got = dump.read(dump.write(step, tmp_path / "new/tokens", ANY_SIZE))
    assert (got.step, got.algorithm, got.settings) == (7, "gtpo_v2", {"gtpo": {"alpha": 0.1}})
    assert len(got.responses) == len(rows)
    for one, want in zip(got.responses, rows, strict=True):
        for name in ("uid", "prompt", "right", "score", "length_penalty", "reward"):
            assert getattr(one, name) == getattr(want, name)
        for name in ("mask", "ids", "prompt_ids"):
            np.testing.assert_array_equal(getattr(one, name), getattr(want, name))
        assert [got.pieces[token] for token in one.tokens] == [step.pieces[token] for token in want.tokens]
        assert one.values.keys() == want.values.keys()
        for name, values in want.values.items():
            assert one.values[name].dtype == np.float32
            np.testing.assert_array_equal(one.values[name], values)


def test_any_reader_of_parquet_finds_a_response_a_row(make_step, tmp_path) -> None:
    step = make_step()
    table = pyarrow.parquet.read_table(dump.write(step, tmp_path, ANY_SIZE)).to_pylist()
    assert len(table) == len(step.responses)
    assert "".join(table[0]["pieces"]) == "".join(step.pieces[token] for token in step.responses[0].tokens)
    assert len(table[0]["entropy"]) == len(table[0]["pieces"]) == len(table[0]["responses"])


def test_a_response_without_tokens_and_a_quantity_that_is_not_there(make_step, tmp_path) -> None:
    step = make_step(size=2, groups=1)
    empty = type(step.responses[0])(
        **{
            **vars(step.responses[0]),
            **dict.fromkeys(("tokens", "ids"), np.zeros(0, np.int32)),
            "mask": np.zeros(0, bool),
            "values": {"advantages": np.zeros(0, np.float32)},
        }
    )
    got = dump.read(dump.write(Step(1, "grpo", {}, step.pieces, [empty, step.responses[1]]), tmp_path, ANY_SIZE))
    assert [len(one.tokens) for one in got.responses] == [0, len(step.responses[1].tokens)]
    assert all(one.values.keys() == {"advantages"} for one in got.responses)


def test_the_newest_are_kept_within_the_bound(make_step, tmp_path) -> None:
    size = dump.write(make_step(1), tmp_path, ANY_SIZE).stat().st_size
    for number in (2, 3, 10, 4):  # not in the order of their names either
        dump.write(make_step(number), tmp_path, 3.5 * size)
    assert list(dump.steps(tmp_path)) == [3, 4, 10]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3.5 * size
    dump.write(make_step(11), tmp_path, 1)
    assert list(dump.steps(tmp_path)) == [11]  # one step alone is above the bound, and stays


def test_a_step_that_cannot_be_written_leaves_the_one_before(make_step, tmp_path, monkeypatch) -> None:
    dump.write(make_step(1), tmp_path, ANY_SIZE)
    before = dump.steps(tmp_path)[1].read_bytes()

    def full(table, path, **_):
        path.write_bytes(b"PAR1 half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pyarrow.parquet, "write_table", full)
    with pytest.raises(OSError, match="No space left"):
        dump.write(make_step(1, seed=5), tmp_path, ANY_SIZE)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def test_what_a_crash_leaves_is_no_step_and_goes_at_the_next_start(make_step, tmp_path) -> None:
    dump.write(make_step(1), tmp_path, ANY_SIZE)
    (tmp_path / "step_2.parquet.part").write_bytes(b"PAR1 half")
    assert list(dump.steps(tmp_path)) == [1]
    dump.forget_after(tmp_path, 1)
    assert os.listdir(tmp_path) == ["step_1.parquet"]


def test_a_run_that_goes_on_forgets_the_steps_of_the_branch_that_it_left(make_step, tmp_path) -> None:
    for number in (8, 9, 10, 11):
        dump.write(make_step(number), tmp_path, ANY_SIZE)
    (tmp_path / "step_notes.parquet").touch()  # not ours
    dump.forget_after(tmp_path, 9)
    assert list(dump.steps(tmp_path)) == [8, 9]
    assert (tmp_path / "step_notes.parquet").exists()
    dump.forget_after(tmp_path / "none", 0)


@pytest.mark.parametrize("cut", [0, 10, 0.5, 0.99])
def test_a_damaged_file_is_named(make_step, tmp_path, cut) -> None:
    path = dump.write(make_step(), tmp_path, ANY_SIZE)
    content = path.read_bytes()
    path.write_bytes(content[: int(cut * len(content)) if isinstance(cut, float) else cut])
    with pytest.raises(InspectError, match=r"step_1\.parquet: cannot be read"):
        dump.read(path)


def test_another_parquet_file_is_named(make_step, tmp_path) -> None:
    path = tmp_path / "step_1.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), path)
    with pytest.raises(InspectError, match=r"step_1\.parquet: cannot be read"):
        dump.read(path)


def replaced(table, name, values):
    return table.set_column(table.column_names.index(name), name, pyarrow.array(values))


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("entropy", lambda rows: [row[:-1] for row in rows], "entropy has rows of other lengths"),
        # As many values in all, but of other tokens.
        ("entropy", lambda rows: [rows[0] + rows[1][:1], rows[1][1:], *rows[2:]], "entropy has rows of other lengths"),
        ("pieces", lambda rows: [rows[0] + rows[1][:1], rows[1][1:], *rows[2:]], "rows of other lengths than pieces"),
        ("advantages", lambda rows: [None, *rows[1:]], "advantages has gaps"),
        ("pieces", lambda rows: [[None, *rows[0][1:]], *rows[1:]], "pieces has gaps"),
        ("right", lambda rows: [None, *rows[1:]], "right has gaps"),
        ("score", lambda rows: [None, *rows[1:]], "score has gaps"),
        ("score", lambda rows: [float("nan"), *rows[1:]], "score is not finite"),
        ("length_penalty", lambda rows: [float("-inf"), *rows[1:]], "length_penalty is not finite"),
    ],
)
def test_columns_that_do_not_fit_are_refused(make_step, tmp_path, name, change, said) -> None:
    path = dump.write(make_step(), tmp_path, ANY_SIZE)
    table = pyarrow.parquet.read_table(path)
    pyarrow.parquet.write_table(replaced(table, name, change(table[name].to_pylist())), path)
    with pytest.raises(InspectError, match=rf"step_1\.parquet: cannot be read.*{said}"):
        dump.read(path)


@pytest.mark.parametrize("kind", ["missing", "numbers", "texts", "nulls"])
def test_no_column_of_another_kind_is_more_than_one_line(make_step, tmp_path, kind) -> None:
    """Whatever stands in a column, the file is read or refused by name, and the page of what is read can be made."""
    path = dump.write(make_step(), tmp_path, ANY_SIZE)
    whole = pyarrow.parquet.read_table(path)
    others = {"numbers": range(len(whole)), "texts": ["x"] * len(whole), "nulls": [None] * len(whole)}
    refused = {}
    for name in whole.column_names:
        table = whole.drop([name]) if kind == "missing" else replaced(whole, name, others[kind])
        pyarrow.parquet.write_table(table, path)
        try:
            encode(dump.read(path))
        except InspectError as error:
            refused[name] = str(error)
    assert all(said.startswith(f"{path}: cannot be read") for said in refused.values())
    assert {"pieces", "responses", "response_mask"} <= refused.keys()


@pytest.mark.parametrize("about", ["[1]", "{", '{"step": null}', '{"step": 1, "algorithm": "", "settings": NaN}'])
def test_metadata_that_is_no_dumps_is_refused(make_step, tmp_path, about) -> None:
    path = dump.write(make_step(), tmp_path, ANY_SIZE)
    table = pyarrow.parquet.read_table(path).replace_schema_metadata({"gtpo_verl": about})
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(InspectError, match=r"step_1\.parquet: cannot be read"):
        dump.read(path)


def test_a_byte_that_a_disk_changed_is_noticed(make_step, tmp_path) -> None:
    path = dump.write(make_step(groups=1), tmp_path, ANY_SIZE)
    whole, content = pyarrow.parquet.read_table(path), path.read_bytes()
    noticed = 0
    for place in range(4, len(content) // 2, 61):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :])
        try:
            dump.read(path)
        except InspectError:
            noticed += 1
            continue
        assert pyarrow.parquet.read_table(path).equals(whole), place
    assert noticed > 20


def test_the_dumps_of_a_run_are_found(make_step, tmp_path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    with pytest.raises(InspectError, match=r"gtpo_verl\.token_dump_freq=1.*token_dump_groups.*token_dump_dir"):
        dump.find(run)
    (run / "config.yaml").write_text(f"gtpo_verl: {{token_dump_dir: {elsewhere}}}\n")
    with pytest.raises(InspectError, match="token_dump_freq"):
        dump.find(run)
    dump.write(make_step(), elsewhere, ANY_SIZE)
    assert dump.find(run) == elsewhere
    assert dump.find(elsewhere) == elsewhere
    dump.write(make_step(), run / "tokens", ANY_SIZE)
    assert dump.find(run) == run / "tokens"
    with pytest.raises(InspectError, match="none: no such run folder"):
        dump.find(tmp_path / "none")
