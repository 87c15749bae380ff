"""Profiles steps of base: the kernels with the most time, and the gaps between kernels."""

import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import jax

from benchmarks.gpu_steps.results import Results, end_with_parent, make_parser
from benchmarks.gpu_steps.training import BASE, Step
from t2t.runtime.text_tables import format_table
from t2t.storage.atomic_files import write_file

STEPS, LISTED = 3, 20
WIDTH = 110  # of names in the table; cuDNN's have several hundred characters
KERNELS, GAPS = "kernels with the most time", "gaps between kernels"


class Event(NamedTuple):
    """A kernel that ran; times in nanoseconds."""

    name: str
    start: float
    end: float


def read_events(folder: Path) -> list[Event]:
    """Reads the kernels of a profile: of all streams of a GPU, or of XLA's threads on a CPU."""
    [path] = folder.rglob("*.xplane.pb")
    planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
    lines = [
        line
        for plane in planes
        for line in plane.lines
        if plane.name.startswith("/device:GPU") and line.name.startswith("Stream")
    ]
    if lines:
        found = [event for line in lines for event in line.events]
    else:
        found = [
            event
            for plane in planes
            for line in plane.lines
            for event in line.events
            if any(name == "hlo_op" for name, _ in event.stats)
        ]
    return [Event(one.name, one.start_ns, one.start_ns + one.duration_ns) for one in found]


def summarize(events: list[Event]) -> dict[str, Any]:
    """Adds up kernels by name, and finds the times in which none ran; in nanoseconds."""
    if not events:
        raise ValueError("the profile has no kernels")
    totals: dict[str, float] = defaultdict(float)
    for event in events:
        totals[event.name] += event.end - event.start
    gaps = []
    ordered = sorted(events, key=lambda event: event.start)
    last = ordered[0]
    for event in ordered[1:]:
        if event.start > last.end:
            gaps.append((event.start - last.end, last.name, event.name))
        last = max(last, event, key=lambda one: one.end)
    return {
        "span": last.end - ordered[0].start,
        "kernels": sorted(totals.items(), key=lambda item: -item[1]),
        "counts": Counter(event.name for event in events),
        "gaps": sorted(gaps, reverse=True),
    }


def describe(found: dict[str, Any]) -> str:
    """Formats the kernels and gaps as text."""
    busy, span = sum(time for _, time in found["kernels"]), found["span"]
    kernels = [
        [
            f"{time / 1e6 / STEPS:.3f}",
            f"{time / busy:.1%}",
            found["counts"][name] / STEPS,
            name[:WIDTH],
        ]
        for name, time in found["kernels"][:LISTED]
    ]
    gaps = [[f"{time / 1e3:.1f}", before, after] for time, before, after in found["gaps"][:LISTED]]
    total = sum(time for time, *_ in found["gaps"])
    return (
        f"{STEPS} steps, {span / 1e6:.2f} ms from the first kernel to the last. No kernel runs in "
        f"{total / span:.1%} of it, {len(found['gaps'])} gaps.\n\n"
        + format_table(kernels, ["ms a step", "share", "calls", "kernel"], align="rrrl")
        + "\n\nThe longest gaps:\n\n"
        + format_table(gaps, ["us", "after", "before"], align="rll")
        + "\n"
    )


def main() -> None:
    """Profiles a few steps, after three; the host works ahead, as in the training loop."""
    flags = make_parser(__doc__).parse_args()
    end_with_parent()
    results = Results(flags.output, (KERNELS, GAPS))
    step = Step(BASE.config(flags.dry_run))
    step.compile()
    step.start()
    step.run(3)
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            step.run(STEPS)
        found = summarize(read_events(Path(folder)))
    text = describe(found)
    print(text)
    path = flags.output.with_suffix(".txt")
    write_file(path, text)
    busy = sum(time for _, time in found["kernels"])
    most = ", ".join(f"{name} {time / busy:.0%}" for name, time in found["kernels"][:3])
    all_kernels = [[name, time / STEPS] for name, time in found["kernels"]]
    results.add(KERNELS, f"{most}; all in {path.name}", nanoseconds_per_step=all_kernels)
    idle = sum(time for time, *_ in found["gaps"]) / found["span"]
    results.add(GAPS, f"{idle:.1%} of the time", share=idle, longest=found["gaps"][:LISTED])


if __name__ == "__main__":
    main()
