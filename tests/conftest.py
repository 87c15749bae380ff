"""Settings of all tests: eight fake CPU devices, and array shapes checked against signatures.

The environment is set before anything imports JAX, and programs that tests start inherit it.
"""

import gc
import math
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]

gc.disable()  # while modules are imported, which stay
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore SIGINT
os.environ["JAX_PLATFORMS"] = "cpu"
# Most of a test's time is compilation, of which these flags leave a quarter, since XLA's older code
# generator is the quicker one. T2T_TEST_FLAGS=user keeps XLA's defaults, which users have, for
# tests that are marked `equality`.
flags = ["--xla_force_host_platform_device_count=8"]
# Without bfloat16 instructions, `model.dtype=auto` is float32 on any CPU.
flags.append("--xla_cpu_max_isa=AVX512")
if os.environ.get("T2T_TEST_FLAGS") != "user":
    flags += ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
    flags.append("--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters")
os.environ["XLA_FLAGS"] = " ".join(flags)

# Property tests use the same few examples each time; --hypothesis-profile=random draws new ones.
ALWAYS: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}
settings.register_profile("quick", derandomize=True, max_examples=25, **ALWAYS)
settings.register_profile("random", max_examples=200, print_blob=True, **ALWAYS)
settings.load_profile("quick")

# Compiled programs are kept outside the checkout, so that a fresh clone finds them. JAX's key of
# a program includes its versions, XLA's flags and the processor.
CACHE = Path("~/.cache/t2t-tests").expanduser()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "0")

# Array shapes are checked in the modules that state them. To check them takes seconds for each
# process, so `.ci/run` does it once, in the quick tests: T2T_TEST_SHAPES=unchecked.
CHECKED = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "t2t").rglob("*.py")
    if "jaxtyping" in path.read_text("utf-8")
]
from tests import typechecker  # noqa: E402  (imports JAX)
from tests.bucket_server import BUCKET, serve_bucket  # noqa: E402

if os.environ.get("T2T_TEST_SHAPES") != "unchecked":
    jaxtyping.install_import_hook(CHECKED, f"{typechecker.__name__}.check")

from t2t.storage import locks  # noqa: E402  (after the hook, which checks it)
from t2t.storage.paths import make_path  # noqa: E402

locks.WAIT = 0.0  # nobody waits for a lock whose refusal is tested


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nothing-skipped", action="store_true", help="A skipped test is a failure.")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores, since some tests wait for other processes."""
    return (os.cpu_count() or 1) + 1


# The files whose tests take longest, which workers begin with, so that they end at the same time.
# pytest-xdist would begin with the files of most tests.
LONGEST = [
    "test_failing_buckets.py", "test_buckets.py", "benchmarks/test_on_gpu.py", "test_docs.py",
    "runtime/test_distributed.py", "test_pipeline.py", "model/test_build.py", "test_evaluate.py",
    "decoding/test_translator_options.py",
    "training/test_step.py", "api/test_run.py", "test_variants.py", "test_translate.py",
    "test_inspect_heads.py", "test_train_validation.py", "test_train.py",
    "runtime/test_mesh.py", "test_directions.py", "test_extend.py", "ops/test_twins.py",
    "decoding/test_sampling.py", "planning/test_planner.py", "test_prepare.py",
    "test_start.py", "decoding/test_beam_search.py", "decoding/test_translator.py",
    "evaluation/test_likelihood.py", "model/test_ensemble.py", "model/test_precision.py",
    "training/test_checkpoint.py", "training/test_losses.py",
]  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):  # pytest-xdist is there
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {ROOT / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))


def pytest_collection_finish() -> None:
    """Lets the garbage collector look rarely.

    Nothing is frozen: Hypothesis asks the collector who holds its generator of random numbers, and
    frozen objects do not answer.
    """
    gc.enable()
    gc.set_threshold(50_000, 20, 100)


def pytest_sessionfinish(session: pytest.Session) -> None:
    gc.collect()  # pytest does it twice more, for exceptions that nobody has raised
    gc.freeze()
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not reporter or not session.config.getoption("--nothing-skipped"):  # workers have none
        return
    if skipped := reporter.stats.get("skipped"):
        reporter.write_line(f"{len(skipped)} tests were skipped: --nothing-skipped", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def bucket_server() -> Iterator[dict[str, str]]:
    """The environment that leads to a server with an empty bucket, which lives as long as tests."""
    for package in ("gcsfs", "gcp_storage_emulator"):
        pytest.importorskip(package)
    with serve_bucket() as environment:
        yield environment


@pytest.fixture
def bucket(
    bucket_server: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A new folder in a bucket, and a home of its own for local copies."""
    home = tmp_path_factory.mktemp("home")
    for name, value in (bucket_server | {"HOME": str(home)}).items():
        monkeypatch.setenv(name, value)
    return make_path(f"gs://{BUCKET}/{home.name}")


@pytest.fixture(scope="module")
def one_device() -> Iterator[None]:
    """Trains on one device, like a program without the fake devices of the tests."""
    from t2t.api import train_run  # here since it is slow and few tests train
    from tests.tiny_training import make_small_mesh

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_run, "make_mesh", make_small_mesh)
        yield


@pytest.fixture(scope="module")
def shared_programs() -> Iterator[dict[Any, Any]]:
    """All tests of the file use the same compiled programs; a test may clear them."""
    from tests.shared_programs import share_programs  # here since it is slow

    with share_programs() as programs:
        yield programs


@pytest.fixture
def own_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes what a test registers after the test."""
    monkeypatch.setattr("t2t.config.variants._registered", {})


@pytest.fixture
def nothing_cached() -> Iterator[None]:
    """JAX keeps programs for devices that are not here, and cannot read them back."""
    import jax

    before = jax.config.values["jax_persistent_cache_min_compile_time_secs"]
    jax.config.update("jax_persistent_cache_min_compile_time_secs", math.inf)
    yield
    jax.config.update("jax_persistent_cache_min_compile_time_secs", before)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory like one of training, for the tests of one file."""
    from tests.tiny_run import make_run  # here since it is slow

    return make_run(tmp_path_factory.mktemp("runs") / "run")
