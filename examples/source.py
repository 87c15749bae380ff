"""A source of data: JSON lines such as {"en": "A girl climbs.", "de": "Ein Mädchen klettert."}.

python -m t2t.train ... --config.plugins=examples.source --config.data.source=json_lines
    --config.data.directory=FOLDER --config.data.src_language=en --config.data.tgt_language=de
"""

import json
from pathlib import Path

from t2t.config import DataConfig
from t2t.config.variants import register
from t2t.data.corpus import Corpus, ListCorpus


@register("data.source", "json_lines")
def open_json_lines(data: DataConfig, split: str) -> Corpus | None:
    """Reads FOLDER/train.jsonl, validation.jsonl or test.jsonl; None: there is no such split."""
    path = Path(data.directory) / f"{split}.jsonl"
    if not path.exists():
        return None
    with path.open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    pairs = [(line[data.src_language], line[data.tgt_language]) for line in lines]
    return ListCorpus(str(path), pairs)
