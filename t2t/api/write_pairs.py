"""`write_pairs`: the text of a config as files, with the origin of each training pair."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from t2t.config.fields import Config, ConfigError
from t2t.data import corpus_sources
from t2t.data.corpus import Corpus, DataError
from t2t.data.dual_cross_entropy import read_entropies, score_pairs, select_best
from t2t.data.preparation import fill_tokenizer
from t2t.data.text_filters import FilteredCorpus
from t2t.storage.atomic_files import atomic_path, explain_write_errors


def write_pairs(
    config: Config,
    output: Path,
    *,
    scores: Sequence[Path] = (),
    keep: float = 1.0,
    first: int | None = None,
    src_tag: str = "",
) -> tuple[int, int]:
    """Writes the files of each split, and origin.tsv; returns the pairs written and read of train.

    Args:
        config: its data and their filters say what is read, its tokenizer how filters spell it.
        output: a new folder; it appears when it is complete.
        scores: what t2t.score --tokens printed of the pairs, for both directions; by these the
            best are kept.
        keep: share of the pairs that is kept by their scores.
        first: only so many pairs of each corpus are read.
        src_tag: a word that is put in front of each source.

    Raises:
        ConfigError, DataError: the folder exists or cannot be written, or a text cannot be read.
    """
    if output.exists():
        raise ConfigError(f"--output={output} exists already; choose a new folder")
    if keep < 1 and not scores:
        raise ConfigError(f"keep={keep:g} keeps the pairs with the best scores; add scores")
    if directions := ", ".join(config.data.directions):
        raise ConfigError(
            f"data.directions={directions}: the files of pairs have one direction and no tags; "
            "leave it empty, and name the languages in data.src_language and data.tgt_language"
        )
    corpus_sources.check_paths(config.data)
    corpus_sources.prepare(config.data)
    tokenizer = fill_tokenizer(config).tokenizer
    corpora = corpus_sources.open_training(config.data, tokenizer)
    pairs = [each for corpus in corpora for each in read_pairs(corpus, first)]
    kept, shown = [*range(len(pairs))], [""] * len(pairs)
    if scores:
        found = score_pairs(*(read_entropies(path, len(pairs)) for path in scores))
        kept, shown = select_best(found, keep), [f"\t{score:.6g}" for score in found]
    others = {}
    for split in corpus_sources.list_splits(config.data):
        if split != "train":
            others[split] = [*corpus_sources.open_split(config.data, split, tokenizer)]
    tag = f"{src_tag} " if src_tag else ""
    with explain_write_errors(DataError, f"--output={output}"), atomic_path(output) as draft:
        draft.mkdir()
        _write(draft / "train.src", (tag + pairs[i][0] for i in kept))
        _write(draft / "train.tgt", (pairs[i][1] for i in kept))
        _write(draft / "origin.tsv", (f"{pairs[i][2]}{shown[i]}" for i in kept))
        for split, rows in others.items():
            for side, name in enumerate(("src", "tgt")):
                _write(draft / f"{split}.{name}", (_join(row[side]) for row in rows))
    return len(kept), len(pairs)


def read_pairs(corpus: Corpus, first: int | None) -> Iterator[tuple[str, str, str]]:
    """Yields the sides of each pair, each in one line, and its corpus and line before filters."""
    count = len(corpus) if first is None else min(first, len(corpus))
    numbers = corpus.kept if isinstance(corpus, FilteredCorpus) else range(len(corpus))
    for number, (src, tgt) in zip(numbers, corpus.read(0, count), strict=False):
        yield _join(src), _join(tgt), f"{corpus.name}\t{number + 1}"


def _write(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"{line}\n" for line in lines)


def _join(text: str) -> str:
    return text.replace("\n", " ").replace("\r", " ")
