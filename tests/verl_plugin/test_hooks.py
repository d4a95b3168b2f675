"""Installed means usable, in any process that imports verl, and nothing is paid for it by a plain verl job."""

import functools
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

REGISTERED = """
    import verl
    from verl.trainer.ppo import core_algos
    from verl.trainer.ppo.v1 import get_trainer_cls
    import gtpo_verl.verl_plugin.trainer as trainer
    for name in ("gtpo_v1", "gtpo_v2", "gtpo_v3", "grpo_s_v1", "grpo_s_v2", "grpo_s_v3"):
        assert callable(core_algos.get_adv_estimator_fn(name))
    for name in ("gtpo", "grpo_s", "grpo_s_geometric"):
        assert callable(core_algos.get_policy_loss_fn(name))
    assert get_trainer_cls("sync") is trainer.sync_trainer
    from gtpo_verl.verl_plugin.hooks import check_registration
    check_registration()
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess:
    import os

    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("platform", ["", "cpu"])
def test_import_verl_is_enough(platform: str) -> None:
    result = run(REGISTERED, VERL_PLATFORM=platform)
    assert result.returncode == 0, result.stderr


def test_import_verl_imports_nothing_heavy_of_ours() -> None:
    code = """
        import sys
        import verl
        heavy = [name for name in sys.modules if name.startswith("verl.trainer")]
        heavy += [name for name in sys.modules if name.startswith(("gtpo_verl.algorithms", "gtpo_verl.entropy"))]
        assert "gtpo_verl.verl_plugin.hooks" in sys.modules
        assert not heavy, heavy
    """
    result = run(code)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("exported", "level", "said"),
    [
        ({}, "WARNING", True),
        ({}, "ERROR", True),
        ({"LOG_LEVEL": "WARNING"}, "WARNING", True),
        ({"LOG_LEVEL": "ERROR"}, "WARNING", False),
        ({"SAGEMAKER_CONTAINER_LOG_LEVEL": "ERROR"}, "WARNING", False),
    ],
)
def test_warnings_are_said_whatever_vllms_server_imports(exported: dict[str, str], level: str, said: bool) -> None:
    code = f"""
        import logging, os
        for name in {{"LOG_LEVEL", "SAGEMAKER_CONTAINER_LOG_LEVEL"}} - {set(exported)}:
            os.environ.pop(name, None)
        import verl
        import vllm.entrypoints.serve.sagemaker.api_router
        logging.getLogger("gtpo_verl.verl_plugin.agreement").log(logging.{level}, "off by a nat")
    """
    result = run(code, VERL_PLATFORM="cpu", **exported)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("off by a nat") == said  # once


BEFORE = [1, 3]


@pytest.fixture(scope="module")
def of_a_put() -> Callable[[str | None], list]:
    """[whether cores are counted, threads during it] for each number of threads before it, in one process for each
    `TQ_NUM_THREADS`, which is read once."""
    code = f"""
        import json, os
        import verl
        import psutil
        import torch
        from transfer_queue import client
        from transfer_queue.storage import simple_storage
        from transfer_queue.utils import common
        counted = []
        cores = psutil.cpu_count
        psutil.cpu_count = lambda *choice, **named: counted.append(1) or cores(*choice, **named)
        results = []
        for before in {BEFORE}:
            for module in (client, simple_storage):
                counted.clear()
                torch.set_num_threads(before)
                common.DEFAULT_TORCH_NUM_THREADS = before  # as where OMP_NUM_THREADS says so at its start
                with module.limit_pytorch_auto_parallel_threads(target_num_threads=module.TQ_NUM_THREADS, info="put"):
                    during = torch.get_num_threads()
                results.append([before, bool(counted), during, torch.get_num_threads()])
        print(json.dumps(results))
    """

    @functools.cache
    def start(threads: str | None) -> list:
        result = run(code, **({} if threads is None else {"TQ_NUM_THREADS": threads}))
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    return start


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize(("threads", "counts"), [("1", False), ("2", True), (None, True)])
def test_with_one_thread_a_put_counts_no_cores(
    of_a_put: Callable, threads: str | None, counts: bool, before: int
) -> None:
    client_and_storage = [others for at_first, *others in of_a_put(threads) if at_first == before]
    assert len(client_and_storage) == 2
    for counted, during, afterwards in client_and_storage:
        assert counted == counts
        assert during == 1 or counts
        assert afterwards == before


def test_plugin_switched_off_is_said_clearly() -> None:
    code = """
        from gtpo_verl.verl_plugin.hooks import check_registration
        try:
            check_registration()
        except RuntimeError as error:
            print(error)
    """
    result = run(code, VERL_USE_EXTERNAL_PLUGINS="none")
    assert "VERL_USE_EXTERNAL_PLUGINS=none" in result.stdout, result.stderr


def test_another_verl_is_refused(tmp_path) -> None:
    """As `pip install verl==0.9.0` leaves it beside this package: with nothing but a warning of pip's."""
    code = """
        from gtpo_verl.verl_plugin.hooks import check_version
        try:
            check_version()
        except RuntimeError as error:
            print(error)
    """
    assert run(code).stdout == ""
    for version, refused in (("0.9.0", True), ("0.9.10", True), ("0.9.2.dev0", True), ("0.9.1+cu128", False)):
        installed = tmp_path / version / f"verl-{version}.dist-info"
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: verl\nVersion: {version}\n")
        result = run(code, PYTHONPATH=str(installed.parent))
        said = f"verl {version} is installed, and gtpo-verl overrides methods of another version: pip install verl=="
        assert result.stdout.startswith(said) == refused, result.stdout + result.stderr


@pytest.mark.slow
def test_plain_verl_jobs_get_verls_own_trainer() -> None:
    code = """
        from hydra import compose, initialize_config_module
        import verl
        from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
        from verl.trainer.ppo.v1 import trainer_base
        from gtpo_verl.verl_plugin import trainer
        with initialize_config_module("verl.trainer.config", version_base=None):
            rollout = ["actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.n=8"]
            plain = compose("ppo_trainer", ["algorithm.adv_estimator=grpo", *rollout])
            ours = compose("ppo_trainer", ["algorithm.adv_estimator=gtpo_v1", *rollout])
        assert type(trainer.sync_trainer(plain)) is PPOTrainerSync
        built = trainer.sync_trainer(ours)
        assert type(built) is trainer.GtpoTrainer
        assert built.replay_buffer.poll_interval == 2.0
    """
    result = run(code)
    assert result.returncode == 0, result.stderr


@pytest.mark.slow
def test_a_users_own_sampler_and_checkpoint_callback_stay(tmp_path) -> None:
    """verl's hooks, in our trainer; a user's own agent loops are in tests/e2e/test_rollout.py."""
    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
            from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
            from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

            class Sampler(ReplayBuffer):
                pass

            class Callback(CheckpointCallback):
                def on_save(self, trainer, global_step, checkpoint_dir, **kwargs):
                    print("saved", global_step, flush=True)
        """)
    )
    code = f"""
        from types import SimpleNamespace
        from gtpo_verl.configuration.composition import compose_config
        from gtpo_verl.verl_plugin import cpu, saving
        cpu.install()
        import mine
        from gtpo_verl.verl_plugin import trainer
        config = compose_config([
            "+trainer.v1.sampler.custom_sampler.path={tmp_path / "mine.py"}",
            "+trainer.v1.sampler.custom_sampler.name=Sampler",
            "+trainer.checkpoint_callback_class=mine.Callback",
            "trainer.default_local_dir={tmp_path / "checkpoints"}",
        ])
        built = trainer.sync_trainer(config)
        assert type(built) is trainer.GtpoTrainer
        assert type(built.replay_buffer).__name__ == "Sampler", type(built.replay_buffer)
        assert type(built.checkpoint_callback) is mine.Callback

        # verl's own `_save_checkpoint`, with workers that write nothing.
        built.global_steps = 3
        built.actor_rollout_wg = SimpleNamespace(save_checkpoint=lambda *args, **kwargs: None)
        built.train_dataloader = SimpleNamespace(state_dict=dict)
        tracking = SimpleNamespace(log=lambda data, step: print("logged", step), logger={{}})
        built.logger = saving.LogThenSave(tracking)
        built._save_checkpoint()
        built.logger.log(data={{}}, step=3)
    """
    result = run(code, VERL_PLATFORM="cpu", PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    said = [line for line in result.stdout.splitlines() if line.startswith(("saved", "logged"))]
    assert said == ["logged 3", "saved 3"]
