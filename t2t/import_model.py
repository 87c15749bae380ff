"""Makes a run of a model that exists: `python -m t2t.import_model --source=FOLDER --workdir=RUN`.

FOLDER is what `transformers` saved: config.json, weights and vocabulary. hf:OWNER/NAME@REVISION is
a model of the Hugging Face Hub. Nothing in it is executed. The run works with all other programs;
its only checkpoint is --checkpoint=last.
"""

import dataclasses
import shlex

from t2t.config.requests import Request, RunPath
from t2t.runtime import command_line


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportRequest(Request):
    """A model of transformers, and the run that is made of it."""

    source: str  # a folder of transformers, or hf:OWNER/NAME[@REVISION]
    workdir: RunPath  # a new run directory
    # a folder with the vocabulary, or hf:OWNER/NAME, for a model that has none beside it, such as
    # MetricX (hf:google/mt5-large); default: --source
    tokenizer: str = ""
    src_language: str = ""  # language code of the source; default: that of tokenizer_config.json
    tgt_language: str = ""  # language code of the target; default: likewise
    # of a model of many languages: eng_Latn-deu_Latn, joined by commas
    directions: tuple[str, ...] = ()
    # fields of config.json that are refused and that you know to have no effect, joined by commas;
    # import.json records them
    ignore_fields: tuple[str, ...] = ()
    # compare the sub-words of 200 lines and the logits of three pairs with the original in
    # transformers, which must be installed (the extra transformers)
    verify: bool = False


def main(request: ImportRequest) -> None:
    """Imports the model; prints what was understood, and what to do next."""
    from t2t.api.import_model import import_model, is_metricx
    from t2t.runtime.text_tables import format_table
    from t2t.training.provenance import read_import

    import_model(**vars(request))
    origin = read_import(request.workdir)
    assert origin is not None
    rows = [*origin["understood"].items()]
    verified = origin.get("verified", {}).items()
    rows += [(f"verified: {name.replace('_', ' ')}", found or "none") for name, found in verified]
    ignored = ", ".join(f"{name}={value!r}" for name, value in origin["ignored_fields"].items())
    print(format_table([*rows, ("ignored by --ignore_fields", ignored or "none")]))
    run = shlex.quote(str(request.workdir))
    use = f"translate --workdir={run} --checkpoint=last"
    if is_metricx(request.workdir):
        use = f"evaluate --workdir=RUN --metricx={run}"
    print(f"{request.workdir}\nnext: python -m t2t.{use}")


if __name__ == "__main__":
    command_line.run(main)
