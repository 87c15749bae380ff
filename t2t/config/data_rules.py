"""The rules of `config.data`, for `rules.validate`."""

import re

from t2t.config.fields import DataConfig


def data_problems(data: DataConfig) -> list[str]:
    """One line for each rule that the section breaks."""
    problems = _source_problems(data)
    if data.max_length % data.length_multiple:
        problems.append(
            f"data.max_length={data.max_length} is no multiple of "
            f"data.length_multiple={data.length_multiple}; raise it to "
            f"{-(-data.max_length // data.length_multiple) * data.length_multiple}"
        )
    longest = "data.packed_length" if data.packed_length else "data.max_length"
    length = data.packed_length or data.max_length
    if data.batch_tokens < length * data.rows_multiple:
        problems.append(
            f"data.batch_tokens={data.batch_tokens} cannot hold data.rows_multiple="
            f"{data.rows_multiple} rows of {longest}={length}; raise it to "
            f"{length * data.rows_multiple}, or lower one of the others"
        )
    if length < data.max_length:
        problems.append(
            f"data.packed_length={length} cannot hold pairs of data.max_length={data.max_length}; "
            "raise it to that value, or lower data.max_length"
        )
    if data.packed_length and any(weight % 1 for weight in data.train_weights):
        problems.append(
            f"data.train_weights={data.train_weights} must be whole numbers with "
            "data.packed_length, since all epochs use the same packed rows"
        )
    return problems


def _source_problems(data: DataConfig) -> list[str]:
    match data.source:
        case "text":
            return _text_problems(data)
        case "hf":
            return _hf_problems(data)
        case _:
            return []


def _text_problems(data: DataConfig) -> list[str]:
    problems = []
    if not data.train_src or len(data.train_src) != len(data.train_tgt):
        problems.append(
            f"data.train_src has {len(data.train_src)} files and data.train_tgt "
            f"{len(data.train_tgt)}; data.source='text' needs equally many, at least one"
        )
    if data.train_weights and len(data.train_weights) != len(data.train_src):
        problems.append(
            f"data.train_weights has {len(data.train_weights)} values for "
            f"{len(data.train_src)} files; give one for each, or none"
        )
    if any(weight <= 0 for weight in data.train_weights):
        problems.append(
            f"data.train_weights={data.train_weights} must all be positive; "
            "to skip a corpus, remove its files"
        )
    for split in ("validation", "test"):
        src, tgt = getattr(data, f"{split}_src"), getattr(data, f"{split}_tgt")
        if bool(src) != bool(tgt):
            problems.append(
                f"data.{split}_src={src!r} and data.{split}_tgt={tgt!r} go together; give both"
            )
    return problems


def _hf_problems(data: DataConfig) -> list[str]:
    problems = []
    if bool(data.hf_name) == bool(data.hf_files):
        problems.append(
            f"data.hf_name={data.hf_name!r} and data.hf_files={data.hf_files!r}: data.source='hf' "
            "needs one of them, a data set on the Hub or files"
        )
    problems += [
        f"data.hf_files has {entry!r}; write SPLIT=FILE, such as train=corpus.tsv"
        for entry in data.hf_files
        if not re.fullmatch(r"\w+=.+", entry)
    ]
    return problems
