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
    """Imports the model that the flags name, and prints what can be done with it."""
    from t2t.api.import_model import import_model, is_metricx

    values = flags.FLAGS
    workdir = make_run_path(values.workdir)
    languages = values.src_language, values.tgt_language
    import_model(values.source, workdir, *languages, values.directions, values.tokenizer)
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
    command_line.run(main)
