"""`gtpo-verl preflight`: all checks of a composed configuration, and what they say of a job."""

from collections.abc import Sequence
from dataclasses import replace

from omegaconf import DictConfig

from gtpo_verl.configuration.composition import compose_config
from gtpo_verl.configuration.preparation import prepare
from gtpo_verl.preflight import budget, comparison, inputs
from gtpo_verl.preflight.architecture import ModelShape
from gtpo_verl.preflight.cluster import RayNode, Survey, connection, survey
from gtpo_verl.preflight.findings import Finding, Status, refused
from gtpo_verl.preflight.node import NodeFacts, Request, collect, versions
from gtpo_verl.preflight.sizes import check_sizes, check_values
from gtpo_verl.preflight.table import print_table
from gtpo_verl.run_folder import checkpoints
from gtpo_verl.run_folder.trackers import modules_of
from gtpo_verl.verl_plugin import cpu


def preflight(overrides: Sequence[str], dry_run: bool = False, gpu_memory: int | None = None) -> int:
    """Composes, checks, prints the table.

    Args:
        dry_run: contact nothing; what only the cluster or absent files could tell is shown as unknown.
        gpu_memory: bytes of a GPU, where no node tells.

    Returns:
        The exit code: 1 where a line is red.
    """
    try:
        config = compose_config(overrides)
        if dry_run:
            config.gtpo_verl.task = None  # preparing one may train its model
        prepare(config)
        cpu.install()
        findings = check(config, dry_run, gpu_memory)
    except (ValueError, OSError) as error:
        findings = [Finding("configuration", Status.FAIL, str(error))]
    print_table(findings)
    return 1 if refused(findings) else 0


def refuse_sizes(config: DictConfig) -> None:
    """What every start asks, also one that does not look at the nodes: sums over the configuration.

    Raises:
        ValueError: the first size that is no number to compute with, or that does not fit the others, by its key.
    """
    for finding in refused(check_values(config) or check_sizes(config, inputs.positions_of_model(config))):
        raise ValueError(f"{finding.key}: {finding.what}: {finding.detail}")


def refuse_unfit(config: DictConfig) -> None:
    """All checks before a job; the table goes to its log.

    Raises:
        RuntimeError: with every red line.
    """
    findings = check(config)
    print_table(findings)
    if red := refused(findings):
        listed = "\n".join(f"  {finding}" for finding in red)
        raise RuntimeError(f"the preflight found what would fail (gtpo_verl.preflight=false skips it)\n{listed}")


def check(config: DictConfig, dry_run: bool = False, gpu_memory: int | None = None) -> list[Finding]:
    """All findings: the driver's, then the nodes', then what must fit.

    Args:
        config: as `configuration.preparation.prepare` leaves it.
    """
    shape, model = inputs.check_model(config, dry_run)
    findings = [*inputs.check_configuration(config), *model]
    if wrong := check_values(config):  # nothing else can be computed
        return [*findings, *wrong]
    if not dry_run:
        findings += inputs.check_start(config)
    findings += inputs.check_data(config, dry_run)
    findings += check_sizes(config, shape.max_position_embeddings if shape else None)
    facts: dict[str, NodeFacts] = {}
    if dry_run:
        unasked = "not asked in a dry run"
        findings += [Finding(what, Status.UNKNOWN, unasked) for what in ("Ray nodes", "versions", "network")]
    else:
        nodes, facts = _check_nodes(config)
        findings += nodes
    return [*findings, *_check_budget(config, shape, facts, gpu_memory)]


def _check_nodes(config: DictConfig) -> tuple[list[Finding], dict[str, NodeFacts]]:
    model = inputs.local_model(config)
    data = [str(path) for name in ("train_files", "val_files") for path in inputs.paths_of(config.data[name])]
    # Not resolved here: `~` is every node's own.
    request = Request(
        config.actor_rollout_ref.model.path if model else None,
        data,
        config.trainer.default_local_dir,
        modules=modules_of(config.trainer.logger),
    )
    wanted, on_gpu = config.trainer.n_gpus_per_node, config.trainer.device == "cuda"
    try:
        with connection(config) as joined:
            answers = survey(request) if joined else _this_machine(request, None if on_gpu else wanted)
    except ConnectionError as error:
        return [Finding("Ray", Status.FAIL, str(error), key="RAY_ADDRESS, ray_kwargs.ray_init.address")], {}
    except OSError as error:
        return [Finding("run folder", Status.FAIL, str(error), key="gtpo_verl.run_dir")], {}
    findings = [*comparison.check_gpu_counts(answers.nodes, config.trainer.nnodes, wanted)]
    findings += comparison.check_answers(answers)
    findings += comparison.check_versions(answers.facts, versions())
    findings += comparison.check_communication(answers.facts)
    ranks = {node.name for node in answers.nodes if node.gpus}  # nothing is trained on a head without GPUs
    for name, facts in answers.facts.items():
        gpus = wanted if on_gpu and name in ranks else None
        findings += comparison.check_node(name, facts, model is not None, gpus, bool(data))
    return findings, answers.facts


def _this_machine(request: Request, gpus: int | None) -> Survey:
    """In place of a cluster, where the job starts a Ray of its own.

    Args:
        gpus: how many it will declare; None: those it has.
    """
    facts = collect(replace(request, visible=True))
    number = len(facts.gpus or []) if gpus is None else gpus
    name = "this machine"
    return Survey([RayNode("", name, "127.0.0.1", number, number)], {name: facts})


def _check_budget(
    config: DictConfig, shape: ModelShape | None, facts: dict[str, NodeFacts], gpu_memory: int | None
) -> list[Finding]:
    """Memory and disk, against those of the node with the least."""
    if shape is None:
        return [
            Finding("memory and disk", Status.UNKNOWN, "the model is not known; gtpo_verl.architecture describes one")
        ]

    def least(sizes: dict[str, int | None], otherwise: int | None = None) -> tuple[int | None, str]:
        known = [(size, name) for name, size in sizes.items() if size is not None]
        return min(known, default=(otherwise, "driver"))

    resumed = there = 0
    if facts:  # not a dry run
        try:
            resumed = checkpoints.resumed_step(config)
            there = checkpoints.present(config, resumed)
        except (ValueError, OSError, TypeError):
            pass  # `check_resume` says why
    # On a CPU the tensors of a "GPU" lie in the node's memory.
    findings = []
    if config.trainer.device == "cuda":
        gpu = least({name: min(node.gpus) if node.gpus else None for name, node in facts.items()}, gpu_memory)
        findings = budget.check_gpu_memory(config, shape, *gpu)
    return [
        *findings,
        budget.check_host_memory(config, shape, *least({name: node.memory for name, node in facts.items()})),
        budget.check_checkpoint_space(
            config, shape, *least({name: node.disk_free for name, node in facts.items()}), resumed, there
        ),
    ]
