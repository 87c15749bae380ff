"""Kills a quickstart in the middle, resumes it, and compares its parameters bit for bit.

Each combination of XLA's flags has one run without interruption and one that is killed after its
checkpoint in the middle. Their checkpoints there tell whether two runs are equal; those at the end
tell whether the resumed one is. A run with skipped steps is no evidence. The validation loss at the
end, beside that of a CPU, tells whether the quickstart learns on this device. The combinations run
side by side, and each has a compilation cache of its own: XLA chooses kernels when it compiles, and
both runs have to use the same ones.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.contest import ROOT
from benchmarks.gpu_steps.results import (
    NOT_FINITE,
    Results,
    end_with_parent,
    make_parser,
    read_reason,
)

FLAGS = {
    "no flag": "",
    "scatter flag": "--xla_gpu_enable_scatter_determinism_expander=true",
    "deterministic_ops": "--xla_gpu_deterministic_ops=true",
    "exclude_nondeterministic_ops": "--xla_gpu_exclude_nondeterministic_ops=true",
}
STEPS = 300
CPU_LOSS = 0.526  # validation loss after these steps on a CPU in float32, seed 0
TOY = (
    "--config.model.num_layers=1", "--config.model.d_model=16", "--config.model.d_ff=16",
    "--config.data.batch_tokens=512", "--config.tokenizer.vocab_size=500",
    "--config.decoding.batch_size=8",
)  # fmt: skip


class Quickstart:
    """Runs of the quickstart with one combination of flags."""

    def __init__(self, folder: Path, xla_flags: str, steps: int, overrides: tuple[str, ...]):
        """`folder` is for the runs; corpora are beside it, for all combinations."""
        self.folder, self.steps = folder, steps
        every = steps // 2
        self._command = [
            sys.executable, "-m", "t2t.train", "--config=configs/quickstart.py",
            f"--config.data.cache_directory={folder.parent / 'corpora'}",
            f"--config.training.steps={steps}", f"--config.training.validate_every={steps}",
            f"--config.checkpoints.every={every}", "--config.checkpoints.keep_best=0", *overrides,
        ]  # fmt: skip
        self._environment = {
            **os.environ,
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {xla_flags}".strip(),
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
        }

    def start(self, run: str) -> subprocess.Popen[bytes]:
        """Starts or continues training in a run directory."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{run}.log").open("a") as log:
            return subprocess.Popen(
                [*self._command, f"--workdir={self.folder / run}"], cwd=ROOT,
                env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def finish(self, run: str) -> None:
        """Trains to the end; raises `RuntimeError` if that fails."""
        status = self.start(run).wait()
        if status:
            raise RuntimeError(read_reason(self.folder / f"{run}.log", status))

    def kill_in_the_middle(self, run: str) -> None:
        """Trains until the first checkpoint is complete, and kills the process."""
        process = self.start(run)
        checkpoint = self.folder / run / "checkpoints" / str(self.steps // 2)
        while not checkpoint.exists():
            if process.poll() is not None:
                raise RuntimeError(read_reason(self.folder / f"{run}.log", process.returncode))
            time.sleep(0.01)
        process.kill()
        process.wait()
        if (self.folder / run / "checkpoints" / str(self.steps)).exists():
            raise RuntimeError("training had ended before it was killed")


def count_differences(one: Path, other: Path, step: int) -> tuple[int, int]:
    """Counts the parameters of two checkpoints that differ in any bit; returns (different, all)."""
    import jax  # here and below, since a call without anything to compare needs neither
    import numpy as np

    jax.config.update("jax_platforms", "cpu")
    from t2t.training.checkpoint import restore_params

    trees = [jax.tree.leaves(restore_params(run, str(step))[0]) for run in (one, other)]
    bits = [[np.asarray(leaf).view(np.uint32) for leaf in leaves] for leaves in trees]
    different = sum(int((a != b).sum()) for a, b in zip(*bits, strict=True))
    return different, sum(leaf.size for leaf in bits[0])


def read_end(run: Path) -> dict[str, Any]:
    """Returns the last value of each metric of a run."""
    end: dict[str, Any] = {}
    for line in (run / "metrics.jsonl").read_text("utf-8").splitlines():
        end |= json.loads(line)
    return end


def main() -> None:
    """Runs all combinations side by side."""
    flags = make_parser(__doc__).parse_args()
    end_with_parent()
    results = Results(flags.output, list(FLAGS)[: 2 if flags.dry_run else None])
    names = results.list_missing()
    if not names:
        return
    folder = flags.output.with_name("resume")
    for path in (*folder.glob("*/whole"), *folder.glob("*/killed")):  # of a call that was stopped
        shutil.rmtree(path)
    steps = 60 if flags.dry_run else STEPS
    overrides = TOY if flags.dry_run else ()

    def run(name: str) -> Path:
        quickstart = Quickstart(folder / name.replace(" ", "_"), FLAGS[name], steps, overrides)
        quickstart.finish("whole")
        runs = quickstart.folder
        shutil.copytree(runs / "whole" / "vocab", runs / "killed" / "vocab")  # saves its training
        quickstart.kill_in_the_middle("killed")
        quickstart.finish("killed")
        return runs

    with ThreadPoolExecutor(len(names)) as pool:
        pending = {pool.submit(run, name): name for name in names}
        for done in as_completed(pending):
            with results.measuring(name := pending[done]):
                runs = done.result()
                figures: dict[str, Any] = {}
                parts, size = [], 0
                for step in (steps // 2, steps):
                    different, size = count_differences(runs / "whole", runs / "killed", step)
                    figures[f"different_at_{step}"] = different
                    share = f"{different / size:.1%} differ" if different else "equal"
                    parts.append(f"step {step}: {share}")
                ends = [read_end(runs / run) for run in ("whole", "killed")]
                losses = [end["validation/loss"] for end in ends]
                if skipped := max(end["train/skipped"] for end in ends):
                    parts = [f"{NOT_FINITE}, no evidence: {skipped} of {steps} steps were skipped"]
                parts.append(f"validation loss {losses[0]:.3f}")
                parts += [f"on a CPU {CPU_LOSS}"] * (not flags.dry_run)
                figures |= {"skipped": skipped, "validation_losses": losses, "parameters": size}
                results.add(name, ", ".join(parts), **figures)
    if not results.list_missing():
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
