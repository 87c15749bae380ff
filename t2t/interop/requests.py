"""The request of an import: the model of another library, and the run that is made of it."""

import dataclasses
from typing import Annotated

from t2t.config.field_types import INPUT, Folder, InputPath
from t2t.config.requests import Request, RunPath


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImportRequest(Request):
    """A model of transformers, and the run that is made of it."""

    source: Annotated[Folder, INPUT]  # a folder of transformers, or hf:OWNER/NAME[@REVISION]
    workdir: RunPath  # a new run directory; it appears when it is complete
    # a folder with the vocabulary, or hf:OWNER/NAME, for a model that has none beside it, such as
    # hf:google/mt5-large for a descendant of mT5; default: --source
    tokenizer: InputPath = ""
    src_language: str = ""  # language code of the source; default: as in tokenizer_config.json
    tgt_language: str = ""  # language code of the target; default: likewise
    # of a model of many languages: eng_Latn-deu_Latn, joined by commas
    directions: tuple[str, ...] = ()
    # fields of config.json that are refused and that you know to have no effect, joined by commas;
    # import.json records them
    ignore_fields: tuple[str, ...] = ()
    # compare the sub-words of 200 lines and the logits of three pairs with the original in
    # transformers, which must be installed (the extra transformers)
    verify: bool = False
