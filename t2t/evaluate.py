"""Scores a run on a test set: `python -m t2t.evaluate --workdir=RUN --split=test`.

It reads the run directory and the raw text of the split. It writes the scores to
RUN/evaluations/SPLIT-CHECKPOINT-beam4-alpha0.6.json and, in the same folder, the hypotheses,
sources, references and the references' log-probabilities as .txt, one line per sentence. --watch
scores the checkpoints of a run while it trains. --average, --beam_sizes and --alphas score a run
with several averages, beam sizes or length penalties. --segment_scores translates nothing: it adds
the scores of another program to the newest evaluation. --hypotheses scores what another program
translated, without a run.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from absl import flags

from t2t.config.fields import ConfigError, DecodingConfig
from t2t.config.flags import define_decoding, define_metricx, read_decoding
from t2t.config.measure_names import MEASURES, METRICX, ON_REQUEST
from t2t.config.variants import import_plugins
from t2t.runtime import command_line
from t2t.storage.paths import make_path, make_run_path

_TEXTS = ("src", "ref", "testset", "segments", "hypotheses")  # flags of a new evaluation
_MODES = ("watch", "average", "beam_sizes", "alphas")  # flags that select several evaluations


def read_counts(checkpoint: str) -> list[int]:
    """Parses --checkpoint for --watch: "last" gives 1, "avg:n" gives n checkpoints to average."""
    counts = []
    for which in checkpoint.split(","):
        match which.split(":"):
            case ["last"]:
                counts.append(1)
            case ["avg", count] if count.isdecimal() and int(count) > 0:
                counts.append(int(count))
            case _:
                raise ConfigError(
                    f"--checkpoint={checkpoint} cannot be used with --watch; use last, avg:5, or "
                    "several joined by commas"
                )
    return sorted(set(counts))


def check_flags(values: Mapping[str, Any], num_processes: int) -> None:
    """Raises `ConfigError` for flags that exclude each other or several processes."""
    for name in (*_MODES, "save_params"):
        if values[name] and num_processes > 1:
            raise ConfigError(f"--{name} works in one process; start only one")
    given = [name for name in _MODES if values[name]]
    if len(given) > 1 and set(given) != {"beam_sizes", "alphas"}:
        raise ConfigError(f"{' and '.join(f'--{name}' for name in given)}: give one of them")
    for name in ("output", "save_params"):
        if given and values[name]:
            raise ConfigError(f"--{name} is for one evaluation, but --{given[0]} makes several")
    ignored: list[str] = []
    has_text = values["hypotheses"] or (values["segment_scores"] and values["output"])
    for wrong, message in (
        (
            not (values["workdir"] or has_text),
            "--workdir is missing; name a run directory, or score what another program translated "
            "by --hypotheses",
        ),
        (values["average"] and values["checkpoint"], "--average chooses: leave out --checkpoint"),
        (values["src"] and values["split"], "--src replaces the split: leave out --split"),
        (values["testset"] and values["split"], "--testset replaces the split: leave out --split"),
        (values["measure"] and not given, "--measure is for a selection: leave it out"),
        (
            values["metricx"]
            and not {"default", METRICX} & {*values["measures"]}
            and values["mbr"] != METRICX,
            "--metricx is for --measures=default,metricx and --mbr=metricx; leave it out",
        ),
        (values["metricx_input"] and not values["metricx"], "--metricx_input is for --metricx=RUN"),
        (
            values["segment_scores"] and (ignored := _list_unheeded(values)),
            "--segment_scores adds to a saved evaluation of one run: the newest of --split and "
            f"--checkpoint, or the one that --output names; leave out --{', --'.join(ignored)}",
        ),
        (
            values["hypotheses"]
            and (
                ignored := [
                    *(n for n in ("workdir", "checkpoint", "split") if values.get(n)),
                    *_list_of_run(values),
                ]
            ),
            "--hypotheses scores what another program translated, without a run; leave out "
            f"--{', --'.join(ignored)}",
        ),
    ):
        if wrong:
            raise ConfigError(message)
    for name in ("patience", "watch_timeout"):
        if values[name] and not values["watch"]:
            raise ConfigError(f"--{name} is for --watch; add --watch or leave it out")


def _list_of_run(values: Mapping[str, Any]) -> list[str]:
    """Returns the flags with a value that only an evaluation of a run heeds."""
    decoding = (field.name for field in dataclasses.fields(DecodingConfig))
    heeded = "save_params", *_MODES, "compute_type", "weights", "direction", *decoding
    found = [name for name in heeded if values.get(name)]
    defaults = {"backend": "jax", "mean": "probabilities"}
    return found + [name for name, own in defaults.items() if values.get(name, own) != own]


def _list_unheeded(values: Mapping[str, Any]) -> list[str]:
    """Returns the flags with a value that only a new evaluation heeds."""
    found = [name for name in (*_TEXTS, "tgt_language", "metricx") if values.get(name)]
    found += _list_of_run(values)
    found += ["measures"] * (values["measures"] != ["default"])
    return found + ["workdir of further runs"] * (len(values.get("workdir") or ()) > 1)


def _register_measures(values: Mapping[str, Any]) -> None:
    """Adds measures to the library's own; those of the run are named by its config."""
    import_plugins(values["plugins"])
    if values["metricx"]:
        from t2t.evaluation.metricx import use_metricx

        use_metricx(make_run_path(values["metricx"], "--metricx"), values["metricx_input"] or "")


def _score_text(values: Mapping[str, Any]) -> int:
    """Scores text with no model: of another program, or by another program; returns 0."""
    from t2t.api.evaluate_run import describe
    from t2t.evaluation.outputs import OutputRequest, evaluate_output
    from t2t.evaluation.segment_scores import add_segment_scores

    if values["hypotheses"]:
        given = {field.name: values[field.name] for field in dataclasses.fields(OutputRequest)}
        given |= {name: tuple(values[name]) for name in ("measures", "ref")}
        print(describe(evaluate_output(OutputRequest(**given))))
        return 0
    if values["output"]:
        place = make_path(values["output"])
    else:
        [place, *_] = command_line.read_models()["workdirs"]
    chosen = values["split"] or "test", values["checkpoint"] or ""
    print(add_segment_scores(place, *chosen, values["segment_scores"]))
    return 0


def main() -> int:
    """Evaluates as the flags say and prints a summary; returns the exit status."""
    import jax

    from t2t.api.evaluate_run import describe, evaluate, scan_averages, scan_search, watch
    from t2t.evaluation.evaluator import EvaluationRequest
    from t2t.runtime.distributed import is_first, join
    from t2t.runtime.jax_settings import enable_compilation_cache

    values = flags.FLAGS.flag_values_dict()
    enable_compilation_cache()
    join(**command_line.read_hosts())
    check_flags(values, jax.process_count())
    _register_measures(values)
    if values["hypotheses"] or values["segment_scores"]:
        return _score_text(values)
    selected = [name for name in _MODES if values[name]]
    fields = {field.name for field in dataclasses.fields(EvaluationRequest)}
    models = command_line.read_models()
    workdir, *others = models.pop("workdirs")
    given = models | {"workdir": workdir, "others": tuple(others), "decoding": read_decoding()}
    given |= {name: tuple(values[name]) for name in ("measures", "ref")}
    given |= {name: values[name] for name in fields - given.keys()}
    given["split"] = given["split"] or ("validation" if selected else "test")
    given["checkpoint"] = given["checkpoint"] or ("last" if values["watch"] else "best")
    request = EvaluationRequest(**given)
    is_ensemble = request.others or (not values["watch"] and "," in request.checkpoint)
    if is_ensemble and selected:
        raise ConfigError(f"an ensemble is one evaluation; leave out --{selected[0]}")
    sizes, alphas = (
        command_line.read_numbers(name, values[name], kind)
        for name, kind in (("beam_sizes", int), ("alphas", float))
    )
    if values["watch"]:
        limits = values["patience"], values["watch_timeout"]
        counts = read_counts(request.checkpoint)
        finished, table = watch(request, counts, values["measure"], *limits)
        print(table, end="\n" * bool(table))
        return 0 if finished else command_line.TIMED_OUT
    if values["average"]:
        averaged = command_line.read_numbers("average", values["average"], int)
        print(scan_averages(request, averaged, values["measure"]))
    elif sizes or alphas:
        print(scan_search(request, sizes, alphas, values["measure"]))
    else:
        evaluation = evaluate(request)
        if is_first():
            print(describe(evaluation))
    return 0


def define_flags() -> None:
    """Defines the flags that say what is evaluated, and how."""
    flags.DEFINE_string(
        "split",
        None,
        "A split of the run's corpus; default: test, or validation with --watch, --average, "
        "--beam_sizes and --alphas, whose scores are for choosing among settings.",
    )
    flags.DEFINE_string(
        "checkpoint",
        None,
        "last, best, a step, avg:5 for the mean of the last 5, or ema for the moving average of "
        "training.ema_decay; default: best. Several form an ensemble. With --watch: "
        "last (the default), avg:5, or several joined by commas, each scored for every new "
        "checkpoint.",
    )
    flags.DEFINE_string(
        "src",
        "",
        "A text file to translate instead of a split; needs --ref. The scores are named after this "
        "file and a hash of both texts.",
    )
    flags.DEFINE_multi_string(
        "ref",
        [],
        "The reference translations of --src, line by line; repeat the flag for several. BLEU, "
        "chrF, TER and exact match use all of them, perplexity the first.",
    )
    flags.DEFINE_string(
        "hypotheses",
        "",
        "What another program translated, one line for each of --src or --testset: it is scored "
        "without a run, and written to --output.",
    )
    flags.DEFINE_string(
        "testset",
        "",
        "A standard test set of sacreBLEU instead of a split, such as wmt24:en-de; it is "
        "downloaded to sacreBLEU's cache.",
    )
    flags.DEFINE_string(
        "segments",
        "",
        "A file with the document of each sentence: its id, line by line, or the sentences with "
        "blank lines between documents; testset: the documents of --testset. Intervals and "
        "verdicts then resample whole documents.",
    )
    flags.DEFINE_multi_string(
        "segment_scores",
        [],
        "NAME=FILE: add another program's scores of the hypotheses to their evaluation, one number "
        "a line, or JSON lines with score, definition and higher_is_better; repeat for several.",
    )
    flags.DEFINE_string(
        "tgt_language",
        "",
        "Language of the references, such as de, zh or zho_Hans, by which measures choose their "
        "tokenisers; default: that of the run (data.tgt_language).",
    )
    flags.DEFINE_list(
        "measures",
        ["default"],
        f'The measures of the text, of {", ".join(MEASURES)}; "default" stands for all that mean '
        f"something for the run but {', '.join(ON_REQUEST)}. --plugins names modules that register "
        "more.",
    )
    flags.DEFINE_string("output", "", "The scores file (.json); default: in RUN/evaluations/.")
    flags.DEFINE_string(
        "save_params", "", "Save the evaluated parameters as this new run directory (one process)."
    )


def define_modes() -> None:
    """Defines the flags that select several evaluations."""
    flags.DEFINE_bool(
        "watch",
        False,
        "Score all checkpoints of the run, and new ones as they appear, until its last step.",
    )
    flags.DEFINE_integer(
        "patience",
        0,
        "With --watch: tell training to stop after this many checkpoints without a better score, "
        "counted from the first one that translates (1 BLEU); 0: never.",
        lower_bound=0,
    )
    flags.DEFINE_float(
        "watch_timeout",
        0.0,
        "With --watch: exit with status 124 after this many seconds without a new "
        "checkpoint; 0: never.",
        lower_bound=0.0,
    )
    flags.DEFINE_list(
        "average", None, "A list such as 1,2,5,10: score the mean of the last n checkpoints each."
    )
    flags.DEFINE_list(
        "beam_sizes",
        None,
        "A list such as 1,4: score with each of these beam sizes, and with each of --alphas if "
        "given.",
    )
    flags.DEFINE_list(
        "alphas",
        None,
        "A list such as 0.4,0.6,1: score with each of these exponents of the length penalty. One "
        "search per beam size serves all of them, with the results of separate searches: alpha "
        "ranks the finished hypotheses but does not affect which hypotheses are extended, and the "
        "search continues until no alpha can find a better one. With beam size 1 there is one "
        "hypothesis, so alpha changes nothing.",
    )
    flags.DEFINE_string(
        "measure",
        None,
        "The score by which --watch, --average, --beam_sizes and --alphas choose the best; "
        "default: bleu, or bleu_lowercase with tokenizer.lowercase. perplexity is that of the "
        "references.",
    )


if __name__ == "__main__":
    command_line.define_models(required=False)
    command_line.define_direction()
    command_line.define_hosts()
    command_line.define_backend()
    define_flags()
    define_modes()
    define_decoding()
    define_metricx()
    command_line.run(main)
