"""Names of checkpoints as users write them: RUN, or RUN:CHECKPOINT."""

import re
from pathlib import Path

from t2t.storage.paths import make_run_path

# What --checkpoint takes, as `checkpoint.restore_params` reads it: for messages, and as a pattern.
CHECKPOINT_NAMES = "last, best, STEP, avg:COUNT, ema or ema:STEP"
CHECKPOINT_PATTERN = r"last|best|\d+|avg:0*[1-9]\d*|ema(:\d+)?"


def split_name(name: str, flag: str) -> tuple[Path, str]:
    """Splits RUN:CHECKPOINT; the checkpoint is "" if the name has none, or is itself a run's.

    `flag` is where the user gave the name.

    Raises:
        PathError: RUN cannot be a run directory.
    """
    matched = re.fullmatch(f"(.*?)(?::({CHECKPOINT_PATTERN}))?", name, re.DOTALL)
    assert matched is not None
    whole = make_run_path(name, flag)
    if not matched[2] or (whole / "config.json").exists():
        return whole, ""
    return make_run_path(matched[1], flag), matched[2]
