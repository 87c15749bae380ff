"""Programs on disk: when they are traced again, and that they compute what fresh ones compute."""

import json
import os
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from t2t.runtime import saved_programs
from t2t.runtime.jax_settings import CACHE_VARIABLE
from t2t.runtime.saved_programs import SavedPrograms
from t2t.training import provenance
from t2t.training.checkpoint import restore_params
from t2t.training.provenance import hash_params, identify_programs
from tests import programs
from tests.tiny_training import make_config, write_recipe

# Calls the function in the first argument, which says when it is traced; the second is an identity.
SCRIPT = """
import sys
import jax
import numpy as np
from t2t.runtime.jax_settings import enable_compilation_cache
from t2t.runtime.saved_programs import SavedPrograms

def double(x, *, times=1):
    print("traced")
    return jax.lax.fori_loop(0, times, lambda _, x: 2 * x, x)

enable_compilation_cache()
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)

def run(times):
    return programs.run(double, np.arange(3.0), options={"times": times})

programs = SavedPrograms(sys.argv[1])
"""
ONE = SCRIPT + "print(run(int(sys.argv[2])))"
TWO = (
    SCRIPT
    + """
from pathlib import Path
from threading import Barrier, Thread
compile_one, both = jax.stages.Lowered.compile, Barrier(2)

def compile_at_once(lowered):
    both.wait(60)  # until the other thread compiles, too
    return compile_one(lowered)

jax.stages.Lowered.compile = compile_at_once
threads = [Thread(target=run, args=[times]) for times in (1, 2)]
for each in threads:
    each.start()
for each in threads:
    each.join()
assert jax.config.values["jax_enable_compilation_cache"]
names = Path.home().glob(".cache/t2t/xla/*.t2t")  # two for each program
print(len({name.stat().st_ino for name in names}))
"""
)


def choose(home: Path, cache: str | None = None, flags: str = "") -> dict[str, str]:
    """The environment of a program with one device and such a cache."""
    environment = os.environ | {"HOME": str(home), "XLA_FLAGS": flags, CACHE_VARIABLE: cache or ""}
    if cache is None:
        del environment[CACHE_VARIABLE]
    return environment


def call(script: str, home: Path, *arguments: str, **chosen: Any) -> tuple[bool, str, str]:
    """Runs a script; returns whether it was traced, its result and its messages."""
    (path := home / "program.py").write_text(script)
    done = programs.run(str(path), *arguments, environment=choose(home, **chosen))
    *first, result = done.stdout.splitlines()
    return first == ["traced"], result, done.stderr


def count_programs(home: Path) -> int:
    """Programs on disk, each of which has a name for its text and one for each key."""
    return len({name.stat().st_ino for name in home.glob(".cache/t2t/xla/*.t2t")})


def test_program_is_traced_again_only_if_it_may_be_another_one(tmp_path: Path) -> None:
    def compute(identity: str = "a", times: int = 3, **chosen: Any) -> tuple[bool, str]:
        is_traced, result, messages = call(ONE, tmp_path, identity, str(times), **chosen)
        assert ("cannot be loaded" in messages) == is_damaged
        return is_traced, result

    is_damaged = False
    assert compute() == (True, "[ 0.  8. 16.]")
    assert compute() == (False, "[ 0.  8. 16.]")
    assert compute("b") == (True, "[ 0.  8. 16.]")
    assert count_programs(tmp_path) == 1  # of both, since their text is the same
    assert compute("a", 2) == (True, "[0. 4. 8.]")
    assert compute("") == compute("a", cache="") == (True, "[ 0.  8. 16.]")
    other = str(tmp_path / "other")
    assert [compute(cache=other)[0] for _ in range(2)] == [True, False]
    (named := tmp_path / "flags").write_text("--xla_cpu_enable_fast_math=true")
    assert compute(flags=str(named))[0]
    named.write_text("--xla_cpu_enable_fast_math=false")
    assert [compute(flags=flags)[0] for flags in (str(named), named.read_text())] == [True, False]
    for file in tmp_path.glob(".cache/t2t/xla/*.t2t"):
        file.write_bytes(file.read_bytes()[:-100])
    is_damaged = True
    assert compute() == (True, "[ 0.  8. 16.]")
    is_damaged = False
    assert compute() == (False, "[ 0.  8. 16.]")


def increase(x: jax.Array) -> jax.Array:
    return x + 1


def test_functions_of_one_name_are_never_taken_for_each_other() -> None:
    def add(number: int) -> Callable[[jax.Array], jax.Array]:
        return lambda x: x + number

    programs, zero = SavedPrograms(), jnp.zeros(())
    with pytest.raises(ValueError, match=r"add\.<locals>\.<lambda> is a method or an inner"):
        programs.run(add(1), zero)
    assert [programs.run(add(n), zero, closure=n) for n in (1, 2, 1)] == [1, 2, 1]
    assert programs.run(increase, zero) == 1
    namesake = types.FunctionType((lambda x: x - 1).__code__, globals(), "increase")
    assert programs.run(namesake, zero, closure=()) == -1


def test_programs_not_used_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_programs, "_MOST", 2)
    programs = SavedPrograms()
    for size in (1, 2, 1, 3):
        assert programs.run(increase, jnp.zeros(size)).shape == (size,)
    assert [key[4][1].shape for key in programs.loaded] == [(1,), (3,)]


def test_programs_that_threads_compile_at_the_same_time_are_all_kept(tmp_path: Path) -> None:
    assert call(TWO, tmp_path, "a")[1] == "2"


def test_code_that_is_newer_than_the_process_is_not_taken_for_what_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def identify() -> str:
        return identify_programs(["t2t.training.step"], ())

    monkeypatch.setattr(provenance, "BEGAN", 2.0**40)
    assert identify()
    monkeypatch.setattr(provenance, "BEGAN", 0.0)
    assert not identify()


@pytest.mark.slow
def test_loaded_search_and_score_are_those_of_fresh_programs(tmp_path: Path, run: Path) -> None:
    sources = tmp_path / "sources.txt"
    sources.write_text("Two dogs run.\nA girl climbs the wall of a house.\n" * 20)

    def evaluate(name: str, cache: str | None) -> list[str]:
        flags = f"--src={sources}", f"--ref={sources}", f"--output={tmp_path / name}.json"
        command = "-m", "t2t.evaluate", f"--workdir={run}", *flags
        programs.run_python(*command, environment=choose(tmp_path, cache)).check_returncode()
        return [(tmp_path / f"{name}{end}").read_text() for end in (".txt", ".log_probs.txt")]

    uncached, cold, warm = evaluate("none", ""), evaluate("cold", None), evaluate("warm", None)
    assert uncached == cold == warm
    assert [*tmp_path.glob(".cache/t2t/xla/*.t2t")]


@pytest.mark.slow
def test_loaded_training_is_that_of_fresh_programs(tmp_path: Path) -> None:
    write_recipe(make_config(tmp_path), recipe := tmp_path / "recipe.py")

    def train(name: str, cache: str | None, seed: int = 0) -> list[Any]:
        command = "-m", "t2t.train", f"--config={recipe}", f"--workdir={tmp_path / name}"
        environment = choose(tmp_path, cache)
        programs.run_python(
            *command, "--config.training.steps=10", f"--config.seed={seed}", environment=environment
        ).check_returncode()
        params, _ = restore_params(tmp_path / name, "last")
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        kept = re.compile("loss|norm|skipped|perplexity|source_use")
        figures = [{k: v for k, v in json.loads(line).items() if kept.search(k)} for line in lines]
        return [hash_params(params), figures]

    uncached, cold = train("none", ""), train("cold", None)
    count = count_programs(tmp_path)
    assert uncached == cold == train("warm", None)
    assert train("uncached_seed", "", seed=1) == train("seed", None, seed=1) != uncached
    assert count_programs(tmp_path) == count > 2  # no seed has programs of its own
