"""Makes a run of a model that exists: `python -m t2t.import_model --source=FOLDER --workdir=RUN`.

FOLDER is what `transformers` saved: config.json, weights and vocabulary. hf:OWNER/NAME@REVISION is
a model of the Hugging Face Hub. Nothing in it is executed. The run works with all other programs;
its only checkpoint is --checkpoint=last.
"""

import shlex

from absl import flags

from t2t.runtime import command_line
from t2t.storage.paths import make_run_path


def main() -> None:
    """Imports the model that the flags name; prints what was understood, and what to do next."""
    from t2t.api.import_model import import_model, is_metricx
    from t2t.runtime.text_tables import format_table
    from t2t.training.provenance import read_import

    values = flags.FLAGS
    workdir = make_run_path(values.workdir)
    import_model(
        values.source,
        workdir,
        values.src_language,
        values.tgt_language,
        values.directions,
        values.tokenizer,
        values.ignore_fields,
        values.verify,
    )
    origin = read_import(workdir)
    assert origin is not None
    rows = [*origin["understood"].items()]
    verified = origin.get("verified", {}).items()
    rows += [(f"verified: {name.replace('_', ' ')}", found or "none") for name, found in verified]
    ignored = ", ".join(f"{name}={value!r}" for name, value in origin["ignored_fields"].items())
    print(format_table([*rows, ("ignored by --ignore_fields", ignored or "none")]))
    run = shlex.quote(str(workdir))
    use = f"translate --workdir={run} --checkpoint=last"
    if is_metricx(workdir):
        use = f"evaluate --workdir=RUN --metricx={run}"
    print(f"{workdir}\nnext: python -m t2t.{use}")


if __name__ == "__main__":
    flags.DEFINE_string(
        "source", None, "A folder of transformers, or hf:OWNER/NAME[@REVISION].", required=True
    )
    flags.DEFINE_string("workdir", None, "A new run directory.", required=True)
    flags.DEFINE_string(
        "tokenizer",
        "",
        "A folder with the vocabulary, or hf:OWNER/NAME, for a model that has none beside it, such "
        "as MetricX (hf:google/mt5-large); default: --source.",
    )
    flags.DEFINE_string(
        "src_language", "", "Language code of the source; default: that of tokenizer_config.json."
    )
    flags.DEFINE_string("tgt_language", "", "Language code of the target; default: likewise.")
    flags.DEFINE_list(
        "directions", [], "Of a model of many languages: eng_Latn-deu_Latn, joined by commas."
    )
    flags.DEFINE_list(
        "ignore_fields",
        [],
        "Fields of config.json that are refused and that you know to have no effect, joined by "
        "commas; import.json records them.",
    )
    flags.DEFINE_bool(
        "verify",
        False,
        "Compare the sub-words of 200 lines and the logits of three pairs with the original in "
        "transformers, which must be installed (the extra transformers).",
    )
    command_line.run(main)
