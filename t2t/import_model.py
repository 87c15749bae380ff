"""Makes a run of a model that exists: `python -m t2t.import_model --source=FOLDER --workdir=RUN`.

FOLDER is what `transformers` saved: config.json, weights and vocabulary. hf:OWNER/NAME@REVISION is
a model of the Hugging Face Hub. Nothing in it is executed. The run works with all other programs;
its only checkpoint is --checkpoint=last.
"""

from t2t.interop.requests import ImportRequest
from t2t.runtime import command_line


def main(request: ImportRequest) -> None:
    """Imports the model; prints what was understood, and what to do next."""
    from t2t.api.import_model import describe_import, import_model

    import_model(**vars(request))
    print(describe_import(request.workdir))


if __name__ == "__main__":
    command_line.run(main)
