"""Lists the results in the table of docs/results.md, from the raw files in benchmarks/results.

    python -m docs.list_results

A test fails while the page lacks one of them.
"""

import json
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RAW = Path(__file__).parents[1] / "benchmarks" / "results"


def list_results() -> list[str]:
    """The cells of the column `result`, in no order."""
    german, french = read("multi30k/students-10000.json"), read("multi30k/french.json")["runs"]
    students, gain = german["mean_of_three_students"], german["students_against_teachers"]
    quickstart = read("quickstart/muon.json")["runs"][0]["quickstart"]
    training = read("training/cpu-large-pages.json")
    peers = {size: min_ratio(training[size]["comparison"]) for size in ("tiny", "small", "base")}
    large = read("data/large-corpus.json")["sizes"][-1]["prepare"]
    digits = read("other-sequences.json")["digits"]["runs"]
    compiled = {
        kind: [
            ratio[kind]
            for ratio in read(f"compiled/flax-wmt-{device}.json")["t2t_over_flax"]
            if ratio["dropout"] == "none"
        ]
        for device, kind in (("gpu", "hbm_bytes"), ("tpu", "cycles"))
    }
    decoding = []
    for size in ("tiny", "base"):
        programs = read(f"decoding/cpu-{size}.json")[size]["comparison"]["tokens_per_second"]
        speed = {program["name"]: program["median"] for program in programs}
        decoding.append(speed["t2t float32"] / speed["CTranslate2, workers: 2, threads: 1"])
    rates = [
        100 * cell["rate"]
        for cell in read("verdicts.json")["cells"]
        if min(cell["seeds"]) > 1 or cell["seeds"] == [1, 3]
    ]
    gpu = {name: step["rows"] for name, step in read("gpu/h100.json")["steps"].items()}
    steps = [gpu["training"][f"{size}, 32,768 positions"] for size in ("base", "big")]
    beside = [gpu["peers"][name]["tokens_per_second"] for name in ("t2t", "Flax WMT example")]
    taught = "sequences, int8 is better than alone, int8"
    [verdict] = [
        line
        for line in read("pipelines/distil-multi30k.json")["verdicts"]
        if line.startswith(taught)
    ]
    tries = read("first_try.json")["runs"]
    better = [
        tries[name.replace("tuned", "fitted")]["chrf"]["value"] / tries[name]["chrf"]["value"]
        for name in tries
        if "tuned" in name
    ]
    test = (RAW / "sweeps/mixture/test.txt").read_text("utf-8").replace("\n  ", " ")
    mixture, *_ = re.findall(r"^- mixture-4 is better than base: .*bleu.*", test, re.M)
    rows = read("sweeps/modern/tuned.json")["rows"]
    costs = [sum(row["core_minutes"][side] for row in rows) for side in (0, 1)]
    others = sum(row["changed"] for row in rows)
    # Such as "convs2s is worse than transformer: -7.05 exact_match [-9.16, -4.94], p = ...".
    outputs = re.findall(r"-[\d.]+", read("tasks/pcfg.json")["compared"][0])
    tasks = read("tasks/published.json")["runs"]
    means = [
        statistics.fmean(
            run["measures"]["exact_match"]["value"]
            for run in tasks[name]
            if run["run"].startswith("base")
        )
        for name in ("eng_100", "eng_500", "eng_1000", "recogs")
    ]
    held_out = [
        each
        for family in read("sweeps/ladders/chosen.json")["families"].values()
        for each in family["held_out"]
    ]
    # Such as "adam mup: the best rate moves by 1.21".
    moves = dict(
        re.findall(
            r"^(\w+ \w+): .* moves by ([\d.]+)$",
            "\n".join(read("parametrization.json")["summary"]),
            re.M,
        )
    )
    ratio = f"{costs[1] / costs[0]:.1f} times the core-minutes"
    return [
        f"{others} of {len(rows) - 1} are others, at {ratio}",
        "{} exact match [{}, {}]".format(*outputs),
        ", ".join(f"{mean:.2f}" for mean in means[:3]) + " exact match",
        f"{means[3]:.2f} exact match",
        "; ".join(
            f"{moves[f'{name} mup']}, {moves[f'{name} standard']}" for name in ("adam", "muon")
        )
        + " times",
        "; ".join(
            "{:.2f} [{:.2f}, {:.2f}], {:.2f}".format(
                each["predicted"]["loss"],
                *each["predicted"]["interval"],
                statistics.geometric_mean(each["losses"].values()),
            )
            for each in held_out
        )
        + " nats per sub-word",
        f"{min(better):.2f} to {max(better):.2f} times",
        bleu(quickstart["bleu"], quickstart["interval"]),
        bleu(*students["test"]["bleu_multi30k"][:2]),
        find_test_score(german["runs"]["seed-2/student-de-en"]),
        ", ".join(find_test_score(french[f"student-{pair}"]) for pair in ("en-fr", "fr-en")),
        bleu(*find_difference(verdict), "+"),
        bleu(*read_verdict("transfer/1000", "from-translation"), "+"),
        bleu(*find_difference(mixture), "+"),
        ", ".join(bleu(*read_verdict(f"sharing/{n}", "own-decoders")) for n in (1500, 4500)),
        bleu(gain["test"]["difference"], gain["test"]["interval"], "+"),
        bleu(*read_verdict("low_resource", "original_pairs")),
        bleu(*read_verdict("quickstart", "no_positions")),
        bleu(*read_verdict("families", "P-prefix_lm")),
        ", ".join(f"{ratio:.2f}" for ratio in peers.values()) + " times as fast",
        ", ".join(f"{ratio:.2f}" for ratio in decoding) + " times as fast",
        f"{min(rates):.2f} to {max(rates):.2f}% of the time",
        f"{large['seconds'] / 60:.1f} minutes, {large['peak_gigabytes']:.1f} GB",
        ", ".join(f"{run['measures']['exact_match']['value']:.1f}" for run in digits) + "%",
        "; ".join(
            ", ".join(f"{value:.2f}" for value in compiled[kind]) + f" of the {name}"
            for kind, name in (("hbm_bytes", "bytes"), ("cycles", "cycles"))
        ),
        ", ".join(f"{step['tokens_per_second']:,.0f}" for step in steps)
        + f" target tokens/s; {beside[0] / beside[1]:.2f} times as fast",
    ]


def read(name: str) -> Any:
    """A raw file."""
    return json.loads((RAW / name).read_text("utf-8"))


def bleu(value: float, interval: Sequence[float], sign: str = "") -> str:
    """BLEU, or a difference, with its interval."""
    return f"{value:{sign}.2f} BLEU [{interval[0]:.2f}, {interval[1]:.2f}]"


def find_test_score(run: dict[str, Any]) -> str:
    """BLEU of a run on its test split."""
    [scores] = [run[name]["measures"] for name in run if name.startswith("test")]
    return bleu(scores["bleu_multi30k"]["value"], scores["bleu_multi30k"]["interval"])


def read_verdict(sweep: str, row: str) -> tuple[float, tuple[float, float]]:
    """Difference of BLEU from base, and its interval, in the report of a sweep."""
    path = RAW / "sweeps" / sweep
    path = path / "report.md" if path.is_dir() else path.with_suffix(".md")
    [verdict] = re.findall(rf"^- {row} is .* base: .*bleu.*", path.read_text("utf-8"), re.M)[:1]
    return find_difference(verdict)


def find_difference(verdict: str) -> tuple[float, tuple[float, float]]:
    """The difference and its interval in a line of a report."""
    number = r"([-+][\d.]+)"
    found = re.search(
        rf"{number} (?:bleu\w* )?\(95% interval \[?{number}(?: to |, ){number}", verdict
    )
    assert found
    difference, low, high = map(float, found.groups())
    return difference, (low, high)


def min_ratio(comparison: Sequence[dict[str, Any]]) -> float:
    """Returns the ratio of the throughput of t2t to that of the fastest peer."""
    others = [row for row in comparison if not row["name"].startswith("t2t")]
    return min(float(row["ours_over_this"]) for row in others)


if __name__ == "__main__":
    print("\n".join(list_results()))
