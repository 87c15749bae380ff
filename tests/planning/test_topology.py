"""Names of topologies, and errors for those that are not available."""

import importlib.util

import pytest

from t2t.config.fields import ConfigError
from t2t.planning import topology as topology_module
from t2t.planning.topology import open_topology, read_memory_share


@pytest.mark.parametrize(
    ("name", "slices", "message"),
    [
        *(
            (name, 1, r"is unknown; write v5e:16x16, .* or cpu:8")
            for name in ("", "v5e:", "v9x:2x2", "cpu:-1")
        ),
        *((name, 1, f"{name} has no devices") for name in ("cpu:0", "h100:0", "a100:8x0")),
        ("cpu:16", 1, r"JAX has 8 CPU devices already; .*count=16"),
        ("v5e:2x2", 1, r"pip install -e '\.\[tpu\]', or use .*cpu:8"),
        ("h100:8", 1, r"neither a GPU nor .* pip install -e '\.\[cuda\]', or use"),
        ("h100:8x4x2", 1, r":8x4 for 4 hosts of 8 GPUs"),
        *(
            (name, slices, rf"--slices={slices}: several slices can be")
            for name, slices in (("v5e:2x2", 0), ("v4:2x2x2", 2), ("h100:8", 2), ("cpu:8", 2))
        ),
    ],
)
def test_topology_that_cannot_be_opened_is_named_with_the_remedy(
    name: str, slices: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins = ["xla_cuda12" if "x2" in name else "other"]
    monkeypatch.setattr(topology_module, "list_plugins", lambda: plugins)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=message):
        open_topology(name, slices)


@pytest.mark.parametrize(
    ("environment", "share"),
    [
        ({}, 0.75),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".9"}, 0.9),
        ({"XLA_CLIENT_MEM_FRACTION": ""}, 0.75),
    ],
)
def test_share_of_a_gpus_memory_is_what_jax_takes(
    environment: dict[str, str], share: float
) -> None:
    assert read_memory_share(environment) == share
    for text in ("0", "1.5", "most", "nan"):  # which JAX cannot take
        with pytest.raises(ConfigError, match="must be between 0 and 1"):
            read_memory_share({"XLA_CLIENT_MEM_FRACTION": text})
