"""Names of topologies, and errors for those that are not available."""

import importlib.util

import pytest

from t2t.planning.chips import CHIPS
from t2t.planning.topology import TopologyError, open_topology


@pytest.mark.parametrize("name", ["", "v5e", "v5e:", "v5e:2xx2", "v9x:2x2", "cpu:eight", "cpu:-1"])
def test_unknown_name_is_answered_with_those_that_are_known(name: str) -> None:
    with pytest.raises(TopologyError, match=r"is unknown; write v5e:16x16, .* or cpu:8"):
        open_topology(name)


def test_fake_cpu_devices_serve() -> None:
    topology = open_topology("cpu:4")
    assert len(topology.devices) == 4
    assert topology.chip == CHIPS["cpu"]


def test_more_cpu_devices_than_there_are_is_an_error() -> None:
    with pytest.raises(TopologyError, match=r"JAX has 8 CPU devices already; .*count=16"):
        open_topology("cpu:16")


def test_missing_tpu_compiler_is_answered_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        TopologyError, match=r"pip install -r requirements-tpu\.txt, or use .*cpu:8"
    ):
        open_topology("v5e:2x2")
