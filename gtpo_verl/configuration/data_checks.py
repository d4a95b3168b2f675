"""Data files as verl will read them: its own loader opens them, and the model's chat template judges the prompts."""

import contextlib
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from gtpo_verl.tasks.data_files import DataFileError, check_rows

if TYPE_CHECKING:
    from datasets import Dataset

_TEMPLATE = "actor_rollout_ref.model.custom_chat_template"


def listed(files: str | Sequence[str] | None) -> list[str]:
    """`data.train_files` or `data.val_files`: one path, several, or none."""
    several = files if isinstance(files, list | tuple | ListConfig) else [files] if files else []
    return [str(file) for file in several]


def read_by_verl(files: Sequence[str | Path]) -> "Dataset":
    """The rows of these files together, opened by verl's own dataset (`RLHFDataset`), nothing left out.

    Raises:
        DataFileError: verl could not read them; names the files and why.
    """
    from verl.utils.dataset.rl_dataset import RLHFDataset

    reader = object.__new__(RLHFDataset)  # what it reads with; the rest wants a tokenizer
    reader.data_files = [str(file) for file in files]
    reader.max_samples, reader.filter_overlong_prompts = -1, False
    try:
        with contextlib.redirect_stdout(io.StringIO()), _no_progress_bars():
            reader._read_files_and_tokenize()
    except Exception as error:  # of datasets, pyarrow, fsspec
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        names, kinds = ", ".join(reader.data_files), {Path(file).suffix.lstrip(".") for file in reader.data_files}
        reason = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise DataFileError(
            f"{names}: not a readable {' and '.join(sorted(kinds))} file for verl ({reason})"
        ) from error
    return reader.dataframe


@contextlib.contextmanager
def _no_progress_bars() -> Iterator[None]:
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def read_by_another(data: DictConfig) -> bool:
    """Whether another class reads the data (`data.custom_cls`), whose form nobody knows but itself."""
    return OmegaConf.select(data, "custom_cls.path") is not None


def check_data(
    key: str,
    files: str | Sequence[str],
    prompt_key: str,
    reward_fn_key: str,
    problem_with_truth: Callable[[Any], str | None] | None = None,
) -> int:
    """The number of rows. Raises FileNotFoundError or DataFileError (file and column, or row) for data that verl cannot
    train on.

    `problem_with_truth` says why the reward cannot grade a ground truth, where that is known.
    """
    rows = 0
    paths = [Path(file).expanduser() for file in listed(files)]
    if not paths:
        raise FileNotFoundError(f"{key}={files}: no file is named")
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(f"{key}={path}: no such file")
    names = prompt_key, reward_fn_key
    try:
        for path in paths:
            read = read_by_verl([path])
            columns, select, validate = read.column_names, read.select_columns, read.data.validate
            rows += check_rows(path, columns, select, validate, *names, problem_with_truth)
        if len(paths) > 1:
            read_by_verl(paths)  # their columns must go together
    except DataFileError as error:  # which begins with the file
        raise DataFileError(f"{key}={error}") from error
    return rows


def chat_tokenizer(config: DictConfig) -> Any | None:
    """The tokenizer with the chat template that a run would use; None where it cannot be had here."""
    from transformers import AutoTokenizer

    model = config.actor_rollout_ref.model
    name = str(model.get("tokenizer_path") or model.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=model.get("trust_remote_code", False))
    except Exception:  # transformers raises whatever a damaged file leads to; whoever checks the model says so
        return None
    tokenizer.chat_template = model.get("custom_chat_template") or tokenizer.chat_template
    return tokenizer


def template_arguments(data: DictConfig) -> dict[str, Any]:
    """What verl hands to the template beside the messages (verl/utils/dataset/rl_dataset.py, `doc2len`)."""
    given: dict[str, Any] = dict(data.get("apply_chat_template_kwargs") or {})
    for name in ("tokenize", "return_dict", "return_tensors"):
        given.pop(name, None)
    return given


def check_templates(config: DictConfig, key: str) -> None:
    """Refuses prompts that the chat template does not take, where verl would not leave them out.

    Prompts of one build (roles, which fields are there, which are empty) are tried once.

    Raises:
        DataFileError: naming the file, the row, and what the template says.
    """
    tokenizer = chat_tokenizer(config)
    if tokenizer is None or tokenizer.chat_template is None:
        return
    arguments, prompt_key = template_arguments(config.data), config.data.prompt_key
    judged: dict[str, str | None] = {}
    for file in listed(config.data[key.removeprefix("data.")]):
        accepted, first = 0, None
        for row, prompt in enumerate(read_by_verl([Path(file).expanduser()])[prompt_key]):
            build = _build(prompt)
            if build not in judged:
                judged[build] = _refusal(tokenizer, prompt, arguments)
            if (why := judged[build]) is None:
                accepted += 1
            elif first is None:
                first = f"{key}={file}: row {row}: the chat template refuses {prompt_key}: {why} ({_TEMPLATE})"
        if first is not None and (not accepted or not config.data.get("filter_overlong_prompts")):
            raise DataFileError(first)


def _build(prompt: Any) -> str:
    return repr(
        [
            [(name, type(value).__name__, bool(value)) for name, value in message.items()] + [message.get("role")]
            for message in prompt
        ]
    )


def _refusal(tokenizer: Any, prompt: Any, arguments: dict[str, Any]) -> str | None:
    try:
        tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False, **arguments)
    except Exception as error:  # the template's own `raise_exception`, or of Jinja, or of Python within it
        return f"{type(error).__name__}: {error}"
    return None
