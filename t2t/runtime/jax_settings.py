"""Settings of JAX in the environment with which t2t does not work, said in one line."""

import os
import re
import sys
from collections.abc import Mapping

from t2t.config.fields import ConfigError

_TRUE = ("y", "yes", "t", "true", "on", "1")  # as JAX reads its variables
_EXTRAS = {"cuda": "cuda", "gpu": "cuda", "tpu": "tpu"}  # by platform
_INVALID = re.compile(r"for (?:environment '(JAX_\w+)'|JAX flag (jax_\w+))")
# Settings that change the numbers that a key gives, with JAX's defaults.
_GENERATOR = {"JAX_DEFAULT_PRNG_IMPL": "threefry2x32", "JAX_THREEFRY_PARTITIONABLE": "1"}


def check_precision(enabled: bool | None = None) -> None:
    """Checks that JAX computes in 32 bits, without importing it.

    In 64 bits other initial parameters are drawn, and the loops of the search have two types.

    Args:
        enabled: `jax.config.jax_enable_x64`; None: what JAX_ENABLE_X64 says.

    Raises:
        ConfigError: it computes in 64 bits.
    """
    value = os.environ.get("JAX_ENABLE_X64", "")
    if value.lower() in _TRUE if enabled is None else enabled:
        name = f"JAX_ENABLE_X64={value}" if value else "jax_enable_x64"
        raise ConfigError(f"{name}: t2t computes in 32 bits or fewer; unset it")


def read_generator(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings of JAX's random generator, as variables of the environment."""
    found = {name: environment.get(name, default) for name, default in _GENERATOR.items()}
    return {name: "1" if value.lower() in _TRUE else value for name, value in found.items()}


def explain_jax_error(error: Exception) -> str | None:
    """Returns the message of an error that a variable of JAX causes; None: it is another one."""
    if isinstance(error, ValueError) and (found := _INVALID.search(str(error))):
        name = (found[1] or found[2]).upper()
        return f"{name}={os.environ.get(name)} is no value that JAX knows; unset it"
    chosen = os.environ.get("JAX_PLATFORMS", "")
    if isinstance(error, RuntimeError) and str(error).startswith("Unable to initialize backend"):
        reason = str(error).splitlines()[0].split(" (set JAX_PLATFORMS")[0].rstrip(".")
    elif chosen and isinstance(error, AssertionError) and not error.args and _lacks_devices():
        reason = "JAX finds no such device"
    else:
        return None
    if not chosen:
        return reason
    extras = {_EXTRAS[name] for name in chosen.split(",") if name in _EXTRAS}
    install = "".join(f"pip install -e '.[{name}]', or " for name in sorted(extras))
    return f"JAX_PLATFORMS={chosen}: {reason}; {install}unset JAX_PLATFORMS"


def _lacks_devices() -> bool:
    """Returns whether JAX fails to find any device: it does so with an assertion alone."""
    try:
        return "jax" in sys.modules and not sys.modules["jax"].devices()
    except AssertionError:
        return True
