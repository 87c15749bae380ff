"""`report_data`: lengths, duplicates, overlap of the splits and dropped pairs of a corpus."""

import dataclasses
import hashlib
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Num

from t2t.config.fields import Config
from t2t.data.batch import UNK_ID
from t2t.data.batch_plan import BatchPlan, CorpusLengths, find_dropped
from t2t.data.corpus import Corpus, Pair
from t2t.data.corpus_sources import list_splits, open_split, open_training
from t2t.data.directions import find_tasks, list_tasks
from t2t.data.objectives import make_objective, make_objectives, plan_lengths
from t2t.data.row_files import UNQUOTE, has_doubled_quotes, is_in_quotes
from t2t.data.spelling import SpelledCorpus, Spelling
from t2t.data.stages import format_stage, list_stages, measure_stages
from t2t.data.text_filters import FILTERS, FilteredCorpus, is_identical
from t2t.data.token_cache import tokenize_corpus
from t2t.data.tokenizer import Vocabulary
from t2t.runtime.text_tables import format_table
from t2t.storage.paths import make_path

_log = logging.getLogger(__name__)

SIDES = ("src", "tgt")
LENGTH_EDGES = (0, 1, 6, 11, 16, 21, 31, 41, 61, 81, 101, 151, 251)
RATIO_EDGES = (0, 1 / 3, 1 / 2, 2 / 3, 4 / 5, 5 / 4, 3 / 2, 2, 3)
BAR_WIDTH = 40  # characters of the fullest bin
NUM_EXAMPLES = 3  # pairs shown of those that a filter drops
EXAMPLE_WIDTH = 60  # characters shown of each side
NUM_CHARACTERS = 10  # shown of those that the vocabulary lacks
# Control characters without the tab, and Unicode's separators of lines and paragraphs.
CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
# Tags, such as <seg id="1"> and </b>, and entities, such as &amp; and &#39;.
MARKUP = re.compile(
    r"</?[A-Za-z][\w:.-]*(\s+[\w:.-]+\s*=[^<>]*)?\s*/?>|&(#\d+|#x[\da-fA-F]+|[A-Za-z]\w{1,7});"
)
NOTHING_UNUSUAL = (
    "nothing unusual: no pair is repeated, in train and another split, left out of training or "
    "equal on both sides; all sentences are in NFC, without control characters, markup and quotes "
    "of a table; and the vocabulary has all characters"
)
# What is counted of sentences, with the end of its line in the report.
FORMS = {
    "not_nfc": "that are not in Unicode's NFC",
    "control": "with control characters or line separators",
    "markup": "with tags such as <b>, or entities such as &amp;",
    "quoted": "in quotes of CSV, as pandas and csv.writer put them",
}
_REMEDIES = {"quoted": f" ({UNQUOTE})"}
_FLAGS = "blank", "enclosed", *FORMS
_SENTENCE = np.dtype([("words", np.int32), ("hash", np.uint64), *((name, bool) for name in _FLAGS)])
_PAIR = np.dtype([("hash", np.uint64), ("identical", bool)])


@dataclasses.dataclass(frozen=True)
class Histogram:
    """The distribution of values; bin i counts the values in [edges[i], edges[i + 1])."""

    mean: float
    median: float
    percentile_99: float
    largest: float
    edges: tuple[float, ...]  # the last bin is open
    counts: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class SplitReport:
    """The figures of one split; dictionary keys are "src", "tgt" and, for pairs, "pair".

    Text alone has no "src" and no ratio.
    """

    pairs: int
    words: dict[str, Histogram]  # separated by white space
    subwords: dict[str, Histogram]  # with EOS
    ratio: Histogram | None  # target sub-words / source sub-words
    blank: int  # pairs without text on any side, such as lines between documents
    # Sentences and pairs are equal if the vocabulary spells them alike (`spelling`). Blank ones are
    # not counted.
    repeated: dict[str, int]  # equal to an earlier sentence or pair of the split
    in_training: dict[str, int]  # equal to one of the training split; empty for "train" itself
    unknown: dict[str, float]  # fraction of the sub-words that are UNK
    bytes: dict[str, float]  # fraction that are byte pieces: characters the vocabulary lacks
    lacking: dict[str, dict[str, int]]  # side -> these characters, most frequent first -> count
    equal_sides: int  # pairs whose target is their source, apart from case
    not_nfc: dict[str, int]  # sentences with characters in parts, such as "a" and a diaeresis
    control: dict[str, int]  # sentences with control characters or line separators
    markup: dict[str, int]  # sentences with tags or entities, as of XML and HTML
    quoted: dict[str, int]  # sentences that are quoted as pandas and csv.writer do it
    dropped: dict[str, int]  # filter -> pairs that it drops; empty except for "train"
    examples: dict[str, list[Pair]]  # filter -> the first pairs that it drops


@dataclasses.dataclass(frozen=True)
class DataReport:
    """The figures of all splits of a config, with one vocabulary."""

    vocab_size: dict[str, int]
    shared: bool  # one vocabulary for both sides
    splits: dict[str, SplitReport]
    unit: str = "characters"  # that a vocabulary may lack; symbols with tokenizer.kind="symbols"
    stages: tuple[dict[str, Any], ...] = ()  # what those of `data.stages` read: `measure_stages`


def report_data(config: Config, vocabulary: Vocabulary) -> DataReport:
    """Computes the figures of all splits; memory grows with the number of pairs, not their length.

    `config.tokenizer` describes the vocabulary.

    Raises:
        DataError: a corpus is missing or malformed.
    """
    splits: dict[str, SplitReport] = {}
    for data in list_tasks(config.data):
        training: dict[str, np.ndarray] = {}  # hashes
        own = dataclasses.replace(config, data=data)
        for split in sorted(list_splits(data), key=lambda name: name != "train"):
            name = "/".join(filter(None, [split, data.task]))
            splits[name] = _describe_split(own, split, name, vocabulary, training)
    sizes = {"src": vocabulary.src.vocab_size, "tgt": vocabulary.tgt.vocab_size}
    unit = "symbols" if vocabulary.tgt.kind == "symbols" else "characters"
    stages = (
        _measure_stages(config, vocabulary) if config.data.stages or config.data.mixture else []
    )
    return DataReport(sizes, vocabulary.shared, splits, unit, tuple(stages))


def _measure_stages(config: Config, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    data, corpora = config.data, open_training(config.data, config.tokenizer)
    tasks, cache = find_tasks(data, corpora), make_path(data.cache_directory)
    tokenized = [tokenize_corpus(corpus, vocabulary, cache) for corpus in corpora]
    lengths = plan_lengths(make_objectives(tasks, vocabulary), tokenized)
    stages = list_stages(data, corpora)
    plan = BatchPlan(lengths, data, config.seed, stages[0].weights, tasks=tasks)
    return measure_stages(stages, plan, corpora)


def _describe_split(
    config: Config,
    split: str,
    name: str,
    vocabulary: Vocabulary,
    training: dict[str, np.ndarray],
) -> SplitReport:
    """Computes the figures of a split; fills `training` with the hashes of the training split."""
    data, corpus = config.data, open_split(config.data, split, config.tokenizer)
    _log.info("tokenizing and counting %s: %d pairs", name, len(corpus))
    spelled = SpelledCorpus(corpus, Spelling.of(vocabulary))
    tokenized = tokenize_corpus(corpus, vocabulary, make_path(data.cache_directory))
    both, sides = tokenized.lengths, [SIDES[n] for n in corpus.sides]
    lengths = {side: both[SIDES.index(side)] for side in sides}
    planned = make_objective(data, vocabulary).plan_lengths(both)
    is_training = split == "train"
    dropped, examples = _count_dropped(config, corpus, planned) if is_training else ({}, {})
    facts, unknown, byte_pieces, lacking = {}, {}, {}, {}
    for number, side in zip(corpus.sides, sides, strict=True):
        characters = Counter[str]()
        tokenizer = getattr(vocabulary, side)
        divide = str.split if tokenizer.kind == "symbols" else list
        texts = ((pair[number], seen[number]) for pair, seen in zip(corpus, spelled, strict=True))
        sentences = (_describe_sentence(*each, divide, characters) for each in texts)
        facts[side] = np.fromiter(sentences, _SENTENCE, len(corpus))
        counts = tokenized.count_ids(number, tokenizer.vocab_size)
        is_byte = [tokenizer.is_byte(token) for token in range(tokenizer.vocab_size)]
        unknown[side] = float(counts[UNK_ID] / counts.sum())
        byte_pieces[side] = float(counts[is_byte].sum() / counts.sum())
        lacking[side] = {
            character: count
            for character, count in characters.most_common()
            if any(i == UNK_ID or is_byte[i] for i in tokenizer.encode_words([character])[0])
        }
    described = ((_hash_text("\0".join(pair)), is_identical(pair)) for pair in spelled)
    pairs = np.fromiter(described, _PAIR, len(corpus))
    is_blank = np.logical_and.reduce([facts[side]["blank"] for side in sides])
    for each in facts.values():  # all in quotes, by a writer that quotes each cell
        if 2 * each["enclosed"].sum() > len(each):
            each["quoted"] = each["enclosed"]
    hashes = {side: facts[side]["hash"][~facts[side]["blank"]] for side in sides}
    hashes["pair"] = pairs["hash"][~is_blank]
    report = SplitReport(
        pairs=len(corpus),
        words={side: make_histogram(facts[side]["words"], LENGTH_EDGES) for side in sides},
        subwords={side: make_histogram(lengths[side], LENGTH_EDGES) for side in sides},
        ratio=None if len(sides) == 1 else make_histogram(both[1] / both[0], RATIO_EDGES),
        blank=int(is_blank.sum()),
        repeated={key: len(values) - len(np.unique(values)) for key, values in hashes.items()},
        in_training={key: int(np.isin(hashes[key], own).sum()) for key, own in training.items()},
        unknown=unknown,
        bytes=byte_pieces,
        lacking=lacking,
        equal_sides=int(pairs["identical"][~is_blank].sum()) if len(sides) > 1 else 0,
        **{form: {side: int(facts[side][form].sum()) for side in sides} for form in FORMS},
        dropped=dropped,
        examples=examples,
    )
    if is_training:
        training |= hashes
    return report


def _describe_sentence(
    text: str, seen: str, divide: Callable[[str], Iterable[str]], characters: Counter[str]
) -> tuple[int | bool, ...]:
    """The fields of `_SENTENCE`, of a text and its spelling; counts the characters."""
    characters.update(divide(seen))
    forms = (
        not unicodedata.is_normalized("NFC", text),
        CONTROL.search(text) is not None,
        divide is not str.split and MARKUP.search(text) is not None,  # a symbol may look like it
        has_doubled_quotes(text.strip()),
    )
    is_blank, is_enclosed = not seen.strip(), is_in_quotes(text.strip())
    return len(seen.split()), _hash_text(seen), is_blank, is_enclosed, *forms


def _hash_text(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _count_dropped(
    config: Config, corpus: Corpus, lengths: CorpusLengths
) -> tuple[dict[str, int], dict[str, list[Pair]]]:
    """Returns the number of training pairs that each filter drops, and the first of them."""
    counts: Counter[str] = Counter()
    examples: dict[str, list[Pair]] = {}
    for part in open_training(config.data, config.tokenizer):
        if isinstance(part, FilteredCorpus):
            counts.update(part.dropped)
            for name in part.dropped:
                found = examples.setdefault(name, [])
                found += part.read_dropped(name, NUM_EXAMPLES - len(found))
    by_length = find_dropped(*lengths, config.data)
    for rule, indices in by_length.items():
        counts[rule] = len(indices)
        examples[rule] = [corpus[index] for index in indices[:NUM_EXAMPLES].tolist()]
    return dict(counts), {name: pairs for name, pairs in examples.items() if pairs}


def make_histogram(values: Num[np.ndarray, "n"], edges: tuple[float, ...]) -> Histogram:
    """Counts values in bins given by their lower edges; no value may be below the first edge."""
    counts, _ = np.histogram(values, (*edges, np.inf))
    # "inverted_cdf" gives a value that occurs: at least 99% of the values are at most that large.
    median, percentile_99 = np.percentile(values, [50, 99], method="inverted_cdf").tolist()
    mean, largest = float(values.mean()), float(values.max())
    return Histogram(mean, median, percentile_99, largest, edges, tuple(counts.tolist()))


def format_report(report: DataReport) -> str:
    """Formats the report as plain text."""
    sizes = report.vocab_size
    lines = [
        f"vocabulary: {sizes['src']:,} for both sides"
        if report.shared
        else f"vocabulary: {sizes['src']:,} source, {sizes['tgt']:,} target"
    ]
    for name, split in report.splits.items():
        lines += ["", f"== {name}: {split.pairs:,} pairs"]
        for side in split.words:
            lines += ["", _format_histogram(f"{side}, words", split.words[side])]
            lines += ["", _format_histogram(f"{side}, sub-words", split.subwords[side])]
        if split.ratio:
            lines += ["", _format_histogram("tgt / src, sub-words", split.ratio)]
        lines += [""]
        if split.blank:
            lines += [f"blank pairs, as between documents: {split.blank:,}"]
        lines += _format_counts("repeated within the split", split.repeated, split.pairs)
        lines += _format_counts("also in train", split.in_training, split.pairs)
        total = split.pairs + sum(split.dropped.get(name, 0) for name in FILTERS)
        lines += _format_counts("left out of training", split.dropped, total)
        lines += [
            f"  {name}: {_shorten(src)} | {_shorten(tgt)}"
            for name, pairs in split.examples.items()
            for src, tgt in pairs
        ]
        for kind, fractions in (("unknown", split.unknown), ("that are single bytes", split.bytes)):
            described = ", ".join(f"{side} {value:.3%}" for side, value in fractions.items())
            lines += [f"sub-words {kind}: {described}"]
        lines += [
            f"{report.unit} that the vocabulary lacks, {side}: {_format_characters(counts)}"
            for side, counts in split.lacking.items()
            if counts
        ]
        lines += [f"pairs with equal sides: {split.equal_sides:,}"]
        for form, end in FORMS.items():
            lines += _format_counts(f"sentences {end}", getattr(split, form), split.pairs)
    for stage in report.stages:
        lines += ["", f"== train, {format_stage(stage)}"]
    return "\n".join([*lines, "", summarize(report)])


def summarize(report: DataReport) -> str:
    """Names in a line what may need attention: pairs, forms of text, characters."""
    found = []
    for name, split in report.splits.items():
        counts = {
            f"blank pairs of {name}, as between documents": split.blank,
            f"pairs of {name} repeated": split.repeated["pair"],
            f"pairs of {name} also in train": split.in_training.get("pair", 0),
            f"pairs of {name} left out of training": sum(split.dropped.values()),
            f"pairs of {name} with equal sides": split.equal_sides,
        }
        found += [f"{what}: {count:,}" for what, count in counts.items() if count]
        found += [
            f"sentences of {name} {end}: {count:,}{_REMEDIES.get(form, '')}"
            for form, end in FORMS.items()
            if (count := sum(getattr(split, form).values()))
        ]
        if lacking := sum(map(Counter, split.lacking.values()), Counter[str]()):
            characters = _format_characters(lacking)
            found.append(f"{name} has {report.unit} that the vocabulary lacks: {characters}")
    return "to look at: " + "; ".join(found) if found else NOTHING_UNUSUAL


def _format_characters(counts: Mapping[str, int]) -> str:
    """Lists characters like "猫 U+732B (12)"; those that cannot be seen by their number alone.

    Symbols of several characters have no number.
    """
    ordered = sorted(counts, key=lambda character: -counts[character])
    shown = [
        f"{each if each.isprintable() else ''}{number} ({counts[each]:,})".strip()
        for each in ordered[:NUM_CHARACTERS]
        for number in [f" U+{ord(each):04X}" if len(each) == 1 else ""]
    ]
    left = len(ordered) - len(shown)
    return ", ".join([*shown, f"{left:,} more"] if left else shown)


def _shorten(sentence: str) -> str:
    text = " ".join(sentence.split())
    return text if len(text) <= EXAMPLE_WIDTH else text[: EXAMPLE_WIDTH - 1] + "…"


def _format_counts(title: str, counts: dict[str, int], total: int) -> list[str]:
    """A line with the counts and their shares of the total; none without counts."""
    described = ", ".join(f"{key} {n:,} ({n / total:.2%})" for key, n in counts.items())
    return [f"{title}: {described}"] if counts else []


def _format_histogram(title: str, histogram: Histogram) -> str:
    fullest, total = max(histogram.counts), sum(histogram.counts)
    rows = [
        ["from", f"{edge:.4g}", f"{count:,}", f"{count / total:.2%}",
         "#" * round(BAR_WIDTH * count / fullest)]
        for edge, count in zip(histogram.edges, histogram.counts, strict=True)
        if count
    ]  # fmt: skip
    return (
        f"{title}: mean {histogram.mean:.4g}, median {histogram.median:.4g}, "
        f"99% at most {histogram.percentile_99:.4g}, largest {histogram.largest:.4g}\n"
        f"{format_table(rows, align='lrrr')}"
    )
