"""Names of topologies, and errors for those that are not available."""

import importlib.util

import pytest

from t2t.config.fields import ConfigError
from t2t.planning import topology as topology_module
from t2t.planning.chips import CHIPS
from t2t.planning.topology import open_topology, read_memory_share


@pytest.mark.parametrize("name", ["", "v5e", "v5e:", "v5e:2xx2", "v9x:2x2", "cpu:eight", "cpu:-1"])
def test_unknown_name_is_answered_with_those_that_are_known(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is unknown; write v5e:16x16, .* or cpu:8"):
        open_topology(name)


@pytest.mark.parametrize("name", ["cpu:0", "h100:0", "a100:8x0"])
def test_no_devices_are_an_error(name: str) -> None:
    with pytest.raises(ConfigError, match=f"--topology={name} has no devices"):
        open_topology(name)


def test_fake_cpu_devices_serve() -> None:
    topology = open_topology("cpu:4")
    assert len(topology.devices) == 4
    assert topology.chip == CHIPS["cpu"]


def test_more_cpu_devices_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"JAX has 8 CPU devices already; .*count=16"):
        open_topology("cpu:16")


def test_missing_tpu_compiler_is_answered_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[tpu\]', or use .*cpu:8"):
        open_topology("v5e:2x2")


def test_missing_gpu_compiler_is_answered_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topology_module, "list_plugins", lambda: ["other"])
    with pytest.raises(
        ConfigError, match=r"neither a GPU nor .* pip install -e '\.\[cuda\]', or use"
    ):
        open_topology("h100:8")


def test_gpus_are_a_number_per_host_and_a_number_of_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_module, "list_plugins", lambda: ["xla_cuda12"])
    with pytest.raises(ConfigError, match=r":8x4 for 4 hosts of 8 GPUs"):
        open_topology("h100:8x4x2")


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({}, 0.75),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}, 0.9),
        ({"XLA_CLIENT_MEM_FRACTION": "1"}, 1.0),
        ({"XLA_CLIENT_MEM_FRACTION": ""}, 0.75),
    ],
)
def test_share_of_a_gpus_memory_is_what_jax_takes(
    environment: dict[str, str], share: float
) -> None:
    assert read_memory_share(environment) == share


@pytest.mark.parametrize("text", ["0", "1.5", "most", "nan"])
def test_share_that_jax_cannot_take_is_an_error(text: str) -> None:
    with pytest.raises(ConfigError, match="must be between 0 and 1"):
        read_memory_share({"XLA_CLIENT_MEM_FRACTION": text})


@pytest.mark.parametrize(
    ("name", "slices"), [("v5e:2x2", 0), ("v4:2x2x2", 2), ("h100:8", 2), ("cpu:8", 2)]
)
def test_slices_are_of_tpus_whose_network_is_known(name: str, slices: int) -> None:
    with pytest.raises(ConfigError, match=rf"--slices={slices}: several slices can be"):
        open_topology(name, slices)
