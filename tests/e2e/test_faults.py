"""Every part of a run is killed or stopped once, in some phase of a step: the run ends within a bounded time, says
why in one line, leaves nothing behind, and the same command goes on. docs/reliability.md has the other phases."""

from collections.abc import Iterator

import pytest
from faults import Cell, Chain

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

# Noticed by the run watch, as the death or stop of other actors is below.
BY_HAND = {
    "kill vllm server @ weights",
    "kill reward worker @ rollout",
    "kill queue controller @ log-probabilities",
    "stop actor @ update",
}
CELLS = [
    "kill driver @ update",
    "kill task runner @ advantages",
    "kill actor @ save",
    "kill vllm server @ weights",
    "kill engine @ rollout",
    "kill vllm worker @ weights",
    "kill agent loop @ rollout",
    "kill reward worker @ rollout",
    "kill queue controller @ log-probabilities",
    "kill queue storage @ update",
    "kill raylet @ rollout",
    "kill gcs @ validation",
    "stop actor @ update",
    "stop vllm worker @ rollout",
    "kill supervisor @ rollout",
]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    started = Chain(tmp_path_factory.mktemp("faults"), len(CELLS))
    yield started
    started.stop()


@pytest.mark.parametrize("cell", [pytest.param(c, marks=pytest.mark.by_hand) if c in BY_HAND else c for c in CELLS])
def test_the_run_ends_says_why_and_leaves_nothing(cell: str, chain: Chain) -> None:
    try:
        chain.meet(Cell.parse(cell))
    finally:
        chain.stop()


def test_what_went_on_after_each_is_a_whole_run(chain: Chain) -> None:
    chain.end()
