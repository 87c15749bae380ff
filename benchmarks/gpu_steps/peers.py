"""Measures training of base beside its peers, in turns: the Flax WMT example and PyTorch.

All have the same batch of packed rows, and the same dropout: of sub-layers' outputs and
embeddings. Products are bfloat16. PyTorch is as fast as it is known to be: a Transformer written
for it with `torch.compile`, autocast, attention by cuDNN, and fused Adam.
"""

import importlib.util
import statistics
from pathlib import Path

from benchmarks.gpu_steps.results import NOT_REACHED, Child, Results, end_with_parent, make_parser

ROUNDS = 2
OURS, FLAX, TORCH = "t2t", "Flax WMT example", "PyTorch, compiled"
PROGRAMS = {OURS: "train_t2t", FLAX: "train_flax_wmt", TORCH: "train_pytorch"}


def find_reason(name: str, checkout: str) -> str:
    """Returns why a peer cannot be measured, or nothing."""
    if name == FLAX and not checkout:
        return "no --checkout"
    if name == TORCH and importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    return ""


def main() -> None:
    """Measures all that are here, one after the other, in two rounds."""
    flags = make_parser(__doc__).parse_args()
    end_with_parent()
    results = Results(flags.output, list(PROGRAMS))
    turn = ["--size=base", "--positions=32768", "--packed_rows=256", "--seconds=3"]
    if flags.dry_run:
        turn = ["--size=tiny", "--positions=64", "--packed_rows=16", "--seconds=0.1"]
    own = {
        OURS: [f"--dtype={'float32' if flags.dry_run else 'bfloat16'}"],
        FLAX: [f"--checkout={Path(flags.checkout).resolve()}"],
        TORCH: [f"--device={'cpu' if flags.dry_run else 'cuda'}"],
    }
    turns: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for _ in range(1 if flags.dry_run else ROUNDS):
        for name, program in PROGRAMS.items():
            if reason := find_reason(name, flags.checkout):
                results.add(name, f"{NOT_REACHED}: {reason}")
                continue
            with results.measuring(name):
                log = flags.output.with_name(f"peers, {name}.log")
                child = Child(log, f"benchmarks.contestants.{program}", *turn, *own[name])
                found = child.finish()
                turns[name].append(found["tokens_per_second"])
                median = statistics.median(turns[name])
                ratio = statistics.median(turns[OURS]) / median if turns[OURS] else None
                text = f"{median:,.0f} target tokens/s"
                text += f"; t2t is {ratio:.2f} times as fast" if ratio and name != OURS else ""
                results.add(name, text, turns=turns[name], **found)


if __name__ == "__main__":
    main()
