"""Steps with programs that take no time in place of those of t2t."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from t2t.evaluation.saved_evaluations import compute_digests
from t2t.workshop.records import plan_steps
from t2t.workshop.runner import Runner
from t2t.workshop.steps import PROGRAMS, Step, Workshop
from tests.evaluation.saved_evaluations import describe

TRAIN = {"config": "configs/quickstart.py"}
# A line of a training's ledger, as far as reports read it.
STARTED = {
    "date": "2017-06-12T17:57:34.000Z", "step": 0, "revision": "one", "changed": [], "devices": 8,
    "device": "P100", "versions": dict.fromkeys(("python", "jax", "flax", "optax"), "3.2.1"),
    "corpora": {"train": [{"name": "my corpus", "pairs": 3}]},
}  # fmt: skip
FAIL = "raise SystemExit('no space')"


class ShortPrograms(Workshop):
    """Each writes its flags to its output, or to a file in it; before that it runs its script.

    An evaluation has them beside scores by no measure.
    """

    def __init__(self, steps: Sequence[Step], workdir: Path, scripts: Mapping[str, str] = {}):
        super().__init__(steps, workdir)
        self.scripts = scripts  # by step

    def make_command(self, step: Step) -> list[str]:
        output, log = self.find_output(step.name), self.workdir / "ran"
        place = output if output.suffix else output / "flags"
        written = str(self.resolve(step))
        if PROGRAMS[step.program].evaluates:
            result = describe({}, 1, texts={}, flags=written)
            written = json.dumps(result | {"sha256": compute_digests(place, result)})
        lines = [
            "import os",
            f"open({str(log)!r}, 'a').write({step.name + ' '!r})",
            self.scripts.get(step.name, ""),
            f"os.makedirs({str(place.parent)!r}, exist_ok=True)",
            f"open({str(place)!r}, 'w').write({written!r})",
        ]
        return [sys.executable, "-S", "-c", "\n".join(lines)]


def run(
    steps: list[Step], workdir: Path, workers: int = 1, **scripts: str
) -> tuple[str, dict[str, str]]:
    """Returns the steps that ran, in order, and why steps failed."""
    workshop = ShortPrograms(steps, workdir, scripts)
    log = workdir / "ran"
    log.unlink(missing_ok=True)
    runner = Runner(workshop, plan_steps(workshop), workers)
    runner.work([*workshop.steps])
    return log.read_text() if log.exists() else "", runner.failures


def make_steps(text: Path, beam: int = 4, steps: int = 5) -> list[Step]:
    """Two chains: a translation needs a teacher, an export needs another run."""
    teacher = Step("teacher", "train", TRAIN | {"config.training.steps": steps})
    flags = {"workdir": teacher, "input": str(text), "beam": beam}
    translated = Step("translated", "translate", flags)
    student = Step("student", "export", {"workdir": translated})
    return [student, translated, teacher, Step("other", "train", TRAIN | {"config.seed": 1})]
