"""Any overrides: they compose and pass the checks before a start, or are refused by an error that names the key.

The checks are those of the driver, in its order, without Ray: `prepare`, then `refuse`. ``GTPO_VERL_FUZZ_MINUTES``
gives the long budget (`budget`).
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from budget import tried
from hydra import compose, initialize_config_module
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from gtpo_verl.configuration.composition import compose_config, in_words, resolve, to_yaml, verl_search_path
from gtpo_verl.configuration.kinds import check_kinds
from gtpo_verl.configuration.preparation import prepare
from gtpo_verl.driver.main import refuse
from gtpo_verl.preflight import command
from gtpo_verl.tasks import arithmetic
from gtpo_verl.tasks.data_files import write_data_file

REFUSALS = (ValueError, OSError, RuntimeError)  # what the driver shows in one line


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of a run that could start: a model's description and tokenizer, and data."""
    from gtpo_verl.tasks.tiny_model import build_tokenizer

    folder = tmp_path_factory.mktemp("start")
    build_tokenizer().save_pretrained(folder / "model")
    described = {
        **{"model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1},
        **{"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256, "vocab_size": 64},
        "architectures": ["Qwen2ForCausalLM"],
    }
    (folder / "model" / "config.json").write_text(json.dumps(described))
    write_data_file(arithmetic.rows("train", 64, 0, arithmetic.ArithmeticConfig()), folder / "train.parquet")
    return [
        "gtpo_verl.task=null",
        f"gtpo_verl.run_dir={folder}/run",
        f"actor_rollout_ref.model.path={folder}/model",
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/train.parquet",
    ]


@cache
def defaults() -> dict[str, Any]:
    """Value by key of what stands in the configuration, groups among them (as None)."""
    found: dict[str, Any] = {}

    def walk(node: Any, prefix: str) -> None:
        for name, value in node.items():
            if re.fullmatch(r"\w+", str(name)):
                found[f"{prefix}{name}"] = {} if isinstance(value, dict) else value
                if isinstance(value, dict):
                    walk(value, f"{prefix}{name}.")

    walk(OmegaConf.to_container(compose_config([])), "")
    return found


# Keys that the recipe, the checks or verl's validation read; the others are drawn too, less often.
READ = re.compile(
    r"(?:gtpo_verl|algorithm|trainer|data|reward|ray_kwargs)\b|actor_rollout_ref\.(?:actor|rollout|model|ref)(?:\.\w+)?$"
    r"|actor_rollout_ref\.(?:actor\.(?:optim|policy_loss|checkpoint|fsdp_config)|rollout\.(?:val_kwargs|agent))\."
)
SPELLED = [
    *("null", "true", "false", "0", "1", "-1", "2", "3", "7", "1.5", "-0.5", "1e30", "-1e30", "nan", "inf", "-inf"),
    *("99999999999999999999", "abc", "''", "' '", "'ü…'", "[]", "[1,a]", "[[]]", "[null]", "{}", "{a:1}"),
    *("{a:{b:null}}", "{enable:true}", "${trainer.nnodes}", "${no.such}", "${trainer}", "${oc.env:HOME}", "${", "???"),
    *("${oc.env:NO_SUCH}", "'1'", "'true'", "'1e-6'", "a b", "/no/such/folder", "~", "~/x", "a,b", "'a=b'", "vllm"),
    *("[console]", "fsdp", "fsdp2", "megatron", "token-mean", "gpu", "cpu", "cuda", "auto", "disable", "resume_path"),
    *("bf16", "float32", "16", "'\\x00'"),
]
VALUES = st.one_of(
    st.sampled_from(SPELLED),
    st.sampled_from(SPELLED),
    st.integers(-5, 5000).map(str),
    st.floats().map(str),
    st.text(max_size=6),
    st.text(max_size=6).map(lambda text: "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"),
)
CHOICES = {
    "algorithm": ["dapo", "gtpo_v2", "gtpo_v3", "grpo_s_v1", "gspo", "dapo_forking_tokens", "nope", "", "null", "[]"],
    "scale": ["cpu", "gpu", "7b_1x8", "nope"],
    "model": ["tiny", "dapo_math", "null"],
    "rollout_correction": ["token_tis", "sequence_tis", "1"],
}


@st.composite
def overrides(draw: Any) -> list[str]:
    keys = list(defaults())
    read = [key for key in keys if READ.match(key)]
    made = []
    for _ in range(draw(st.integers(1, 3))):
        key = draw(st.one_of(st.sampled_from(read), st.sampled_from(read), st.sampled_from(keys)))
        kind = draw(st.sampled_from(["="] * 12 + ["++", "+", "~", "under", "unknown", "choice"]))
        value = draw(VALUES)
        if kind == "=":
            made.append(f"{key}={value}")
        elif kind in ("++", "+"):
            made.append(f"{kind}{key}={value}")
        elif kind == "~":
            made.append(f"~{key}")
        elif kind == "under":
            made.append(f"+{key}.more={value}")
        elif kind == "unknown":
            made.append(draw(st.sampled_from([f"{key}x={value}", f"+{key}_new={value}", f"nosuch.{key}={value}"])))
        else:
            group = draw(st.sampled_from(list(CHOICES)))
            made.append(f"{group}={draw(st.sampled_from(CHOICES[group]))}")
    return made


@contextlib.contextmanager
def surroundings() -> Iterator[None]:
    """The environment comes back as it was, and what is printed goes nowhere."""
    before = dict(os.environ)
    for name in ("RAY_ADDRESS", "VERL_ENGINE_VENDOR", "VERL_FILE_LOGGER_PATH", "WANDB_MODE"):
        os.environ.pop(name, None)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def key_of(override: str) -> str:
    return re.split(r"=", override.lstrip("+~"), maxsplit=1)[0]


def names_a_key(message: str, given: list[str]) -> bool:
    """Whether a refusal names an overridden key (its last part, as verl and OmegaConf do), or one depending on it."""
    for override in given:
        key = key_of(override)
        if key in message or (len(last := key.rpartition(".")[2]) > 1 and last in message) or override in message:
            return True
    return any(re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", message) for key in defaults() if "." in key)


@cache
def unresolved() -> DictConfig:
    GlobalHydra.instance().clear()
    with initialize_config_module("gtpo_verl.configs", version_base=None):
        return compose("train", verl_search_path([]))


def composed(overrides: list[str]) -> DictConfig:
    """As `compose_config`, by Hydra's own functions, but for reading verl's files again; without choices of groups."""
    config = copy.deepcopy(unresolved())
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
        ConfigLoaderImpl._apply_overrides_to_config(parsed, config)
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(in_words(error)) from error
    resolve(config)
    return config


def assert_accepted_or_named(
    given: list[str], start: list[str], compose: Callable[[list[str]], DictConfig] = compose_config
) -> None:
    with surroundings():
        try:
            config = compose([*start, *given])
            prepare(config)
            refuse(config)
            to_yaml(config)
        except REFUSALS as error:
            assert type(error) is not UnicodeDecodeError
            assert names_a_key(str(error), given), f"{type(error).__name__}: {error}"


FOUND = [
    ["actor_rollout_ref.actor.profiler=null"],
    ["actor_rollout_ref.actor.profiler=1e30"],
    ["actor_rollout_ref.actor.profiler.tool_config.torch=null"],
    ["actor_rollout_ref.actor=["],
    ["trainer.nnodes=???"],
    *(
        [f"{key}={value}"]
        for key in ("data.train_batch_size", "trainer.total_epochs")
        for value in ("null", "0", "1.5")
    ),
    ["trainer.total_training_steps=1e30"],
    ["data.train_max_samples=0.5"],
    ["+gtpo_verl.env.TRIED=2"],
    ["ray_kwargs.ray_init=null"],
    ["trainer.default_local_dir=1.5"],
    ["ray_kwargs.ray_init._temp_dir=2"],
    ["data.reward_fn_key='\\x00'"],
]


@tried(4, share=2)
@given(given=overrides())
def test_any_overrides_are_accepted_or_refused_by_name(given: list[str], start: list[str]) -> None:
    assert_accepted_or_named(given, start)


@tried(15, share=8)
@given(given=overrides().filter(lambda given: not any(key_of(one) in CHOICES for one in given)))
def test_any_overrides_of_keys_are_accepted_or_refused_by_name(given: list[str], start: list[str]) -> None:
    assert_accepted_or_named(given, start, composed)


@pytest.mark.parametrize("given", FOUND, ids=" ".join)
def test_what_was_found(given: list[str], start: list[str]) -> None:
    assert_accepted_or_named(given, start)


def test_the_start_itself_is_accepted(start: list[str]) -> None:
    with surroundings():
        config = compose_config(start)
        prepare(config)
        refuse(config)


@tried(4, share=2)
@given(given=overrides())
def test_the_preflight_makes_findings_of_any_overrides(given: list[str], start: list[str]) -> None:
    with surroundings():
        assert command.preflight([*start, *given], dry_run=True) in (0, 1)


TAKES_OTHERS = (
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.model.target_modules",
    "critic.model.target_modules",
)


def test_modules_of_an_adapter_may_be_listed() -> None:
    config = compose_config(["actor_rollout_ref.model.target_modules=[q_proj,v_proj]"])
    check_kinds(config)
    assert config.actor_rollout_ref.model.target_modules == ["q_proj", "v_proj"]


OTHER_KINDS: list[tuple[type, list[Any]]] = [
    (bool, ["abc", "true", "", 2, 0.5, [1], {"a": 1}]),
    (int, ["abc", "1", "", True, float("nan"), [1], {"a": 1}]),
    (float, ["abc", "1.5", "", False, float("nan"), [], {"a": 1}]),
    (str, [True, [], ["a"], {"a": 1}]),
    (list, [1, 0.5, True, {"a": 1}]),
    (dict, [1, "abc", True, [], ["a"]]),
]


@tried(60)
@given(key=st.deferred(lambda: st.sampled_from(list(defaults()))), data=st.data())
def test_a_value_of_another_kind_is_refused_by_its_key(key: str, data: Any) -> None:
    default = defaults()[key]
    assume(default is not None and key not in TAKES_OTHERS)
    wrong = data.draw(st.sampled_from(next(values for kind, values in OTHER_KINDS if type(default) is kind)))
    config = OmegaConf.create(OmegaConf.to_container(compose_config_once()))
    OmegaConf.update(config, key, wrong, merge=False, force_add=True)
    with pytest.raises(ValueError, match=rf"^{re.escape(key)}=.* must be "):
        check_kinds(config)


@cache
def compose_config_once() -> Any:
    return compose_config([])
