"""Measures translation: beam 4, base, sentences with lengths like WMT's, outputs of known lengths.

CTranslate2 runs beside it, with the same random parameters, if it is installed.
"""

import importlib.util

from benchmarks.gpu_steps.results import NOT_REACHED, Child, Results, end_with_parent, make_parser

OURS, PEER = "t2t, beam 4", "CTranslate2, beam 4, float16"


def main() -> None:
    """Measures one after the other."""
    flags = make_parser(__doc__).parse_args()
    end_with_parent()
    results = Results(flags.output, (OURS, PEER))
    turn = ["--size=base", "--sentences=500"]
    own = {OURS: [], PEER: ["--device=cuda", "--compute_type=float16"]}
    if flags.dry_run:
        turn, own[PEER] = ["--size=tiny", "--sentences=4"], []
    for name, program in ((OURS, "decode_t2t"), (PEER, "decode_ctranslate2")):
        if name == PEER and importlib.util.find_spec("ctranslate2") is None:
            results.add(name, f"{NOT_REACHED}: CTranslate2 is not installed")
            continue
        with results.measuring(name):
            log = flags.output.with_name(f"{program}.log")
            found = Child(log, f"benchmarks.contestants.{program}", *turn, *own[name]).finish()
            text = f"{found['tokens_per_second']:,.0f} tokens/s"
            results.add(name, f"{text}, {found['sentences']} sentences", **found)


if __name__ == "__main__":
    main()
