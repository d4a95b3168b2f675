"""The configuration that is printed is the one that would run, without what nobody may see."""

import json
import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from gtpo_verl.configuration import composition
from gtpo_verl.configuration.checks import check_config
from gtpo_verl.configuration.composition import HIDDEN, changes, compose_config, to_yaml


def test_resolves_interpolations() -> None:
    config = compose_config(["algorithm=gtpo_v2", "trainer.project_name=p", "data.seed=3"])
    assert config.gtpo_verl.run_dir == "runs/p/gtpo_v2-seed3"


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("algorithm=nope", "nope"),
        ("trainer.no_such_key=1", "no_such_key"),
        ("trainer.project_name=${no.such}", "no.such"),
    ],
)
def test_refuses_what_hydra_refuses(override: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        compose_config([override])


@pytest.mark.parametrize(
    "key",
    [
        *("api_key", "WANDB_API_KEY", "hf_token", "HF_TOKEN", "password", "client_secret", "access_token", "apikey"),
        *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "CLEARML_API_SECRET_KEY", "private_key"),
        *("MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_PASSWORD", "GITHUB_TOKEN", "AZURE_STORAGE_ACCOUNT_KEY"),
    ],
)
def test_hides_credentials(key: str) -> None:
    config = compose_config([f"+trainer.deep.{key}=hunter2"])
    text = to_yaml(config)
    assert "hunter2" not in text
    assert f"{key}: {HIDDEN}" in text


def test_hides_credentials_in_lists() -> None:
    text = to_yaml(compose_config(["+trainer.loggers=[{name: wandb, api_key: hunter2}]"]))
    assert "hunter2" not in text
    assert "name: wandb" in text


@pytest.mark.parametrize("address", ["http://me:hunter2@proxy:3128", "postgresql+psycopg2://me:hunter2@db/runs"])
def test_hides_and_refuses_an_address_with_a_password(address: str) -> None:
    config = compose_config([f"+trainer.wandb_proxy='{address}'"])
    assert "hunter2" not in to_yaml(config)
    with pytest.raises(ValueError, match=r"trainer\.wandb_proxy looks like a credential") as refusal:
        check_config(config)
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("address", ["http://proxy:3128", "http://proxy:3128/a@b", "hdfs://host:9000", "12:30@noon"])
def test_an_address_without_a_password_is_none(address: str) -> None:
    check_config(compose_config([f"+trainer.wandb_proxy='{address}'"]))


def test_hides_nothing_of_verls_own() -> None:
    assert HIDDEN not in to_yaml(compose_config([]))


@pytest.mark.parametrize("key", ["max_token", "key", "tokenizer", "num_tokens", "prompt_key", "key_id", "token_file"])
def test_hides_no_other_key(key: str) -> None:
    shown = HIDDEN if key == "max_token" else "7"
    assert f"{key}: {shown}" in to_yaml(compose_config([f"+trainer.deep.{key}=7"]))


def test_refuses_a_credential_by_its_key_alone() -> None:
    config = compose_config(["+ray_kwargs.ray_init.runtime_env.env_vars.WANDB_API_KEY=hunter2"])
    with pytest.raises(ValueError, match=r"env_vars\.WANDB_API_KEY looks like a credential") as refusal:
        check_config(config)
    assert "hunter2" not in str(refusal.value)


def test_changes_are_named_by_key_with_both_values() -> None:
    before = {
        "algorithm": {"gtpo": {"alpha": 0.1, "beta": 0.9}},
        "trainer": {"logger": ["file"], "old": None},
        "env": {},
    }
    after = {
        "algorithm": {"gtpo": {"alpha": 0.2, "beta": 0.9}},
        "trainer": {"logger": ["file", "wandb"]},
        "env": {"A": 1},
    }
    texts = [to_yaml(OmegaConf.create(config)) for config in (before, after)]
    assert changes(*texts) == [
        "algorithm.gtpo.alpha: 0.1 -> 0.2",
        "env: {} -> nothing",
        "env.A: nothing -> 1",
        "trainer.logger: ['file'] -> ['file', 'wandb']",
        "trainer.old: None -> nothing",
    ]
    assert changes(texts[0], texts[0]) == []


@pytest.mark.parametrize("before", ["", "{torn", "- a\n", "a: [1,"])
def test_a_damaged_configuration_does_not_end_a_run(before: str) -> None:
    assert changes(before, "a: 1\n") == (["a: nothing -> 1"] if not before else [])


def test_changes_show_no_credential() -> None:
    texts = [to_yaml(OmegaConf.create({"api_key": value, "seed": value})) for value in ("first", "second")]
    assert changes(*texts) == ["seed: first -> second"]


def test_composing_waits_for_no_import_of_verl() -> None:
    program = """
        import sys
        import gtpo_verl.driver.main
        from gtpo_verl.configuration.composition import compose_config
        from gtpo_verl.configuration.preparation import set_environment
        set_environment(compose_config(["scale=cpu", "model=smollm2"]))
        print([name for name in ("torch", "ray", "verl", "transformers") if name in sys.modules])
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.stdout == "[]\n", result.stderr


def test_verls_folder_is_found_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "a 'b' c, [d] {e}, $f=g: h" / "verl"
    (package / "trainer").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    original = Path(find_spec("verl").origin).parent / "trainer/config"  # type: ignore[union-attr,arg-type]
    (package / "trainer/config").symlink_to(original)
    expected = compose_config(["hydra.searchpath=[pkg://verl.trainer.config]"])  # the user's own; imports verl
    monkeypatch.setattr(composition, "find_spec", lambda name: SimpleNamespace(origin=str(package / "__init__.py")))
    assert compose_config([]) == expected


@pytest.mark.parametrize("own", [{}, {"TQ_NUM_THREADS": "4", "MINE": "1"}])
def test_a_users_own_runtime_environment_of_ray_comes_before_the_presets(own: dict[str, str], tmp_path: Path) -> None:
    program = """
        import json, sys
        from omegaconf import OmegaConf
        from gtpo_verl.configuration.composition import compose_config
        from gtpo_verl.configuration.preparation import forwarded_variables, set_environment
        own = json.loads(sys.argv[1])
        keys = [f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}='{value}'" for name, value in own.items()]
        config = compose_config(["scale=gpu", f"gtpo_verl.run_dir={sys.argv[2]}", *keys])
        set_environment(config)
        print(json.dumps({**own, **forwarded_variables(config)}))
    """
    environment = {name: value for name, value in os.environ.items() if name != "TQ_NUM_THREADS"}
    command = [sys.executable, "-c", textwrap.dedent(program), json.dumps(own), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert result.returncode == 0, result.stderr
    forwarded = json.loads(result.stdout.splitlines()[-1])
    assert forwarded["TQ_NUM_THREADS"] == own.get("TQ_NUM_THREADS", "1")
    assert forwarded["TOKENIZERS_PARALLELISM"] == "false"
