"""What all binaries share: a `--config` flag, logging, and errors without a traceback."""

import difflib
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import config_flags

from t2t.config import Config, ConfigError, flatten, validate

INTERRUPTED = 75  # exit status: stopped by a signal, type the same command again to go on


def define_config() -> None:
    """Adds `--config=configs/base.py`, and `--config.SECTION.FIELD=VALUE` for every field."""
    config_flags.DEFINE_config_file(
        "config", None, "A recipe, as configs/base.py or configs/multi30k.py:en-de."
    )
    flags.mark_flag_as_required("config")


def define_workdir() -> None:
    """Adds `--workdir=RUN`."""
    flags.DEFINE_string("workdir", None, "The run directory.", required=True)


def read_config() -> Config:
    """The recipe with its overrides, validated."""
    chosen = flags.FLAGS["config"].value
    if not isinstance(chosen, Config):
        raise ConfigError(
            f"get_config() of the recipe returned {type(chosen).__name__}, not t2t.config.Config"
        )
    return validate(chosen)


def read_workdir() -> Path:
    """The run directory."""
    return Path(flags.FLAGS.workdir).expanduser()


def run(main: Callable[[], int | None]) -> None:
    """Parses the flags, calls `main`, exits with what it returns.

    A `ValueError`, `RuntimeError` or `OSError` of this project ends with its message alone and
    status 2; anything else is a fault of the program and keeps its traceback.
    """
    logging.captureWarnings(True)
    absl_logging.set_verbosity(absl_logging.INFO)
    logging.getLogger("absl").setLevel(logging.WARNING)

    def call(arguments: Sequence[str]) -> int | None:
        if len(arguments) > 1:
            return _fail(f"{' '.join(arguments[1:])}: not a flag; see --help")
        logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
        logging.getLogger("absl").setLevel(logging.WARNING)
        try:
            return main()
        except (ValueError, RuntimeError) as error:
            if type(error).__module__.split(".")[0] != "t2t":
                raise
            return _fail(str(error))
        except KeyboardInterrupt:
            return _fail("interrupted", INTERRUPTED)

    app.run(call, flags_parser=_parse)


def _parse(arguments: Sequence[str]) -> Sequence[str]:
    try:
        return app.parse_flags_with_usage(list(arguments))
    except KeyError as error:  # from config_flags: no such field
        names = [a.split("=")[0].removeprefix("--config.") for a in arguments if "--config." in a]
        known = list(flatten(Config()))
        unknown = next((name for name in names if name not in known), str(error))
        close = difflib.get_close_matches(unknown, known, n=3) or known
        sys.exit(_fail(f"--config.{unknown}: no such field; perhaps {', '.join(close[:3])}"))


def _fail(message: str, status: int = 2) -> int:
    print(message, file=sys.stderr)
    return status
