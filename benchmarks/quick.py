"""The ratios that matter, on one page: `python -m benchmarks.quick --peer_python=PYTHON`.

It measures training of two sizes, search, the whole evaluation of the quickstart's test set, and
one line. Each is a ratio of t2t to a peer that is installed, or to --before=CHECKOUT, an earlier
revision of t2t, in turns. The table compares these ratios with the last recorded run. A ratio that
fell by more than its noise is red: the noise is how far the ratios of single rounds lie apart, in
this run or in the recorded one. --record replaces the recorded run. It takes twelve minutes, with
--before twenty. A CPU without instructions for bfloat16 trains in float32 alone.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contest import LARGE_PAGES, ROOT, Contestant, take_turns, write
from t2t.runtime.machine_speed import multiplies_bfloat16
from t2t.runtime.text_tables import format_table
from t2t.training.provenance import find_revision, find_versions, now

RECORDED = Path("benchmarks/results/quick.json")
PACKAGES = ("jax", "jaxlib", "flax", "ctranslate2", "sacrebleu")
STEPS = 300  # of the quickstart, whose translations then have the lengths of the references
SENTENCES = {"tiny": 300, "small": 150}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A measurement of t2t, and the peers that it is compared with."""

    name: str
    figure: str  # more is better
    ours: Contestant
    peers: Sequence[Contestant]
    warm_up: int = 0  # rounds that do not count, in which programs are compiled


def list_subjects(run: Path, seconds: float, peer_python: str) -> list[Subject]:
    """Lists what is measured; `run` is a run of the quickstart."""
    own = sys.executable, "-m"
    subjects = []
    for size in SENTENCES:
        turn = [f"--size={size}", f"--seconds={seconds:g}"]
        # PyTorch's fastest programs: which one is depends on the machine.
        programs, dtypes = [("hand", "float32")], ["float32"]
        if multiplies_bfloat16():  # else bfloat16 takes many times as long
            programs.append(("nn", "bfloat16"))
            dtypes.insert(0, "mixed")
        pytorch = []
        for program, precision in programs:
            peer = [peer_python, "-m", "benchmarks.contestants.train_pytorch", *turn]
            peer += [f"--program={program}", f"--precision={precision}"]
            pytorch.append(Contestant(f"PyTorch {program} {precision}", peer, LARGE_PAGES))
        for dtype in dtypes:
            peers = pytorch if dtype == "mixed" else pytorch[:1]
            command = [*own, "benchmarks.contestants.train_t2t", *turn, f"--dtype={dtype}"]
            subjects.append(
                Subject(
                    f"training {size} {dtype}",
                    "tokens_per_second",
                    Contestant(dtype, command, LARGE_PAGES),
                    peers if peer_python else [],
                )
            )
    has_engine = importlib.util.find_spec("ctranslate2") is not None
    for size, sentences in SENTENCES.items():
        turn = [f"--size={size}", f"--sentences={sentences}"]
        ours = [*own, "benchmarks.contestants.decode_t2t", *turn, "--dtype=float32"]
        peer = [*own, "benchmarks.contestants.decode_ctranslate2", *turn, "--threads=1"]
        peer.append(f"--workers={len(os.sched_getaffinity(0))}")
        subjects.append(
            Subject(
                f"search {size}",
                "tokens_per_second",
                Contestant("float32", ours),
                [Contestant("CTranslate2", peer)] if has_engine else [],
            )
        )
    # By its path, since an earlier checkout may have no such file.
    timed = [sys.executable, str(ROOT / "benchmarks/contestants/run_program.py")]
    evaluate = [*timed, "t2t.evaluate", f"--workdir={run}", "--split=test"]
    evaluate.append("--output=NEW/scores.json")
    line = [*timed, "t2t.translate", f"--workdir={run}"]
    for name, command in (("evaluation", evaluate), ("one line", line)):
        engine = Contestant("CTranslate2", [*command, "--backend=ctranslate2"])
        peers = [engine] if has_engine else []
        subjects.append(Subject(name, "per_minute", Contestant("jax", command), peers, warm_up=1))
    return subjects


def move(contestant: Contestant, checkout: Path) -> Contestant:
    """The contestant in another checkout of t2t."""
    environment = {**contestant.environment, "PYTHONPATH": str(checkout)}
    return dataclasses.replace(
        contestant, name=f"before, {contestant.name}", environment=environment, folder=checkout
    )


def measure(subject: Subject, rounds: int) -> dict[str, dict[str, Any]]:
    """Returns figures and ratios by name; a ratio has those of its rounds."""
    turns = take_turns([subject.ours, *subject.peers], subject.warm_up + rounds)
    figures = {
        name: [each[subject.figure] for each in found[subject.warm_up :]]
        for name, found in turns.items()
    }
    ours = figures[subject.ours.name]
    found = {}
    for peer in subject.peers:
        theirs = figures[peer.name]
        ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
        found[f"{subject.name} / {peer.name}"] = {
            "ratio": statistics.median(ratios),
            "rounds": ratios,
            "figure": subject.figure,
            "ours": ours,
            "theirs": theirs,
        }
    return found


def find_noise(rounds: Sequence[float]) -> float:
    """How far the ratios of single rounds lie apart, as a share of their median."""
    return (max(rounds) - min(rounds)) / statistics.median(rounds)


def describe(
    found: Mapping[str, Mapping[str, Any]], recorded: Mapping[str, Any], *, colours: bool
) -> str:
    """The page: each ratio beside the recorded one."""
    red, plain = ("\033[31m", "\033[0m") if colours else ("", "")
    lines = []
    for name, row in found.items():
        cells, shown = [f"{row['ratio']:.2f}", "", "", ""], name
        if before := recorded.get(name):
            change = row["ratio"] / before["ratio"] - 1
            noise = max(map(find_noise, (row["rounds"], before["rounds"])))
            cells[1:] = f"{before['ratio']:.2f}", f"{change:+.0%}", f"{noise:.0%}"
            shown = f"{red}{name}: fell{plain}" if change < -noise else name
        lines.append([*cells, shown])
    return format_table(lines, ["ratio", "recorded", "change", "noise", ""], align="rrrr")


def main() -> None:
    """Measures, and prints the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6, help="of a turn of training")
    parser.add_argument("--peer_python", default="", help="Python with torch and transformers")
    parser.add_argument("--before", type=Path, help="a checkout of an earlier revision")
    parser.add_argument("--only", default="", help="only what has this in its name")
    parser.add_argument("--record", action="store_true", help=f"replace {RECORDED}")
    arguments = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        run = Path(name) / "run"
        train = ["t2t.train", "--config=configs/quickstart.py", f"--workdir={run}"]
        flags = {"training.steps": STEPS, "training.warmup_steps": 100}
        options = [f"--config.{field}={value}" for field, value in flags.items()]
        subprocess.run([sys.executable, "-m", *train, *options], cwd=ROOT, check=True)
        for subject in list_subjects(run, arguments.seconds, arguments.peer_python):
            peers = [*subject.peers]
            if arguments.before:
                peers.append(move(subject.ours, arguments.before.resolve()))
            if arguments.only in subject.name and peers:
                new = measure(dataclasses.replace(subject, peers=peers), arguments.rounds)
                print(describe(new, {}, colours=False), flush=True)  # if a later one fails
                found |= new
    recorded = json.loads(RECORDED.read_text("utf-8"))["ratios"] if RECORDED.exists() else {}
    print(describe(found, recorded, colours=sys.stdout.isatty()))
    if arguments.record:
        facts = {**find_revision(), "date": now(), "versions": find_versions(PACKAGES)}
        write(RECORDED, {**facts, "rounds": arguments.rounds, "ratios": found})


if __name__ == "__main__":
    main()
