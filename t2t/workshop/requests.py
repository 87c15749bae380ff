"""The flags of programs that run steps."""

import dataclasses
from collections.abc import Iterator

from t2t.config.field_types import PositiveInt
from t2t.config.requests import Request


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkshopRequest(Request):
    """How steps are run."""

    plan: bool = False  # only print what would run, and why
    report: bool = False  # only write the report, of what is finished so far
    workers: PositiveInt = 1  # number of programs at the same time
    # a command of SLURM, such as 'sbatch --gpus-per-node=1 launch/slurm.sh': submit jobs instead of
    # running the programs here
    submit: str = ""

    def list_problems(self) -> Iterator[str]:
        """Yields what does not go together."""
        yield from super().list_problems()
        modes = ("plan", "report", "submit")
        if len(given := [name for name in modes if getattr(self, name)]) > 1:
            yield f"{' and '.join(f'--{name}' for name in given)}: give one of them"
