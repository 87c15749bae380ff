"""The texts of an evaluation: a split, text files or a standard test set, and their documents.

Standard test sets are sacreBLEU's: its list, its downloads and its cache (~/.sacrebleu, or the
folder that the variable SACREBLEU names).
"""

import difflib
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from sacrebleu.dataset import DATASETS
from sacrebleu.utils import SACREBLEU_DIR

from t2t.config.fields import ConfigError, DataConfig, TokenizerConfig
from t2t.config.languages import normalize_language
from t2t.data.corpus import Corpus, TextCorpus, TextFile, hash_strings
from t2t.evaluation.measure import TestSet

FIRST_WORD = "first_word"  # value of --kinds: kinds are what sources begin with
OWN_DOCUMENTS = "testset"  # value of --segments: the documents that the test set itself names


def open_texts(
    data: DataConfig,
    split: str,
    *,
    src: str = "",
    ref: Sequence[str] = (),
    testset: str = "",
    segments: str = "",
    kinds: str = "",
    tokenizer: TokenizerConfig = TokenizerConfig(),  # noqa: B008  (only filters of train read it)
) -> TestSet:
    """Opens a split, the text files `src` and `ref`, or a standard test set such as wmt24:en-de.

    `segments` is a file with the documents, or "testset" for the standard test set's. `kinds` is
    that of `read_kinds`; without it they are those of the split, if it names some. Text files are
    named by their stem and a hash of their content, so that the file `test.en` is not confused with
    the split `test` or with another `test.en`.

    Raises:
        ConfigError: the arguments contradict each other, or name no test set or no documents.
        DataError: a text is missing, or the texts have different numbers of lines.
    """
    name, language, is_own = "", "", segments == OWN_DOCUMENTS
    if testset:
        if src or ref:
            raise ConfigError(f"--testset={testset} has its own texts; leave out --src and --ref")
        src, ref, named = find_test_set(testset, data)
        standard, _, pair = testset.rpartition(":")
        name, language = f"{standard.replace('/', '_')}-{pair}", pair.partition("-")[2]
        if is_own:
            segments = named
            if not named:
                raise ConfigError(
                    f"--segments={OWN_DOCUMENTS}: {testset} names no documents; leave it out, or "
                    "name a file"
                )
    elif is_own:
        raise ConfigError(f"--segments={OWN_DOCUMENTS} is for --testset; name a file")
    if bool(src) != bool(ref):
        raise ConfigError(f"--src={src!r} and --ref={','.join(ref)!r} go together; give both")
    corpora: list[Corpus]
    if src:
        corpora = [TextCorpus(src, each) for each in ref]
    else:
        from t2t.data.corpus_sources import open_split

        corpora = [open_split(data, split, tokenizer)]
    fingerprints = [each.fingerprint() for each in corpora]
    fingerprint = hash_strings("references", *fingerprints) if corpora[1:] else fingerprints[0]
    sources = [text for text, _ in corpora[0]]
    references = [[text for _, text in each] for each in corpora]
    documents = None
    if segments:
        documents = read_documents(segments, [sources, *references], is_own=is_own)
    of_kinds = read_kinds(kinds, sources) if kinds else corpora[0].read_kinds()
    name = f"{name or Path(src).stem}-{fingerprint[:8]}" if src else split
    return TestSet(sources, references, documents, name, fingerprint, language, kinds=of_kinds)


def read_kinds(path: str, sources: Sequence[str]) -> list[str]:
    """Reads the kind of each sentence from a file, or takes the first word of its source.

    `path` is the file, or "first_word".

    Raises:
        ConfigError: there is not one kind for each sentence.
    """
    if path == FIRST_WORD:
        return [next(iter(source.split()), "none") for source in sources]
    file, count = TextFile(path), len(sources)
    kinds = [line.strip() for line in file.read(0, len(file))]
    if len(kinds) != count:
        raise ConfigError(
            f"--kinds={path} has {len(kinds)} lines, but the test set has {count} sentences; write "
            "the kind of each sentence, line by line"
        )
    if not all(kinds):
        raise ConfigError(f"--kinds={path}, line {kinds.index('') + 1} is blank; write a kind")
    return kinds


def find_test_set(testset: str, data: DataConfig) -> tuple[str, Sequence[str], str]:
    """Returns the paths of the source, the references and the documents of a standard test set.

    sacreBLEU downloads it if it is not in its cache. The path of the documents is empty if the test
    set names none.

    Raises:
        ConfigError: there is no such test set, it cannot be read or downloaded, or it has other
            languages than the run.
    """
    name, _, pair = testset.rpartition(":")
    if name not in DATASETS:
        near = difflib.get_close_matches(name or pair, DATASETS, n=5, cutoff=0.5)
        known = f"near names: {', '.join(near)}" if near else "`sacrebleu --list` lists them"
        raise ConfigError(
            f"--testset={testset}: sacreBLEU has no test set {name or pair!r}; write it such as "
            f"wmt24:en-de; {known}" if name else
            f"--testset={testset}: write the test set and its languages, such as wmt24:en-de"
        )  # fmt: skip
    dataset = DATASETS[name]
    if pair not in dataset.langpairs:
        raise ConfigError(
            f"--testset={testset}: {name} has no {pair!r}; use one of "
            f"{', '.join(sorted(dataset.langpairs))}"
        )
    for code, field in zip(pair.split("-"), ("src_language", "tgt_language"), strict=True):
        own = getattr(data, field)
        if own and normalize_language(code) != normalize_language(own):
            raise ConfigError(f"--testset={testset}: the run has data.{field}={own}, not {code}")
    try:
        paths: Any = dataset  # its methods have no types
        files = dict(zip(paths.fieldnames(pair), paths.get_files(pair), strict=True))
        source = paths.get_source_file(pair)
        references = sorted(paths.get_reference_files(pair))  # sacreBLEU's order varies
    except (OSError, SyntaxError, SystemExit) as error:  # of XML, and of a wrong check sum
        raise ConfigError(
            f"--testset={testset} is not in {SACREBLEU_DIR}, and cannot be downloaded ({error}); "
            f"run `sacrebleu -t {name} -l {pair} --echo src` on a machine with network, and copy "
            f"its ~/.sacrebleu/{name} to {Path(SACREBLEU_DIR, name)}"
        ) from None
    return source, references, str(files.get("docid", ""))


def read_documents(
    path: str, texts: Sequence[Sequence[str]], *, is_own: bool = False
) -> Int[np.ndarray, "n"]:
    """Reads the number of each sentence's document, from 0.

    The file has a document's id for each sentence, line by line; or one of `texts`, the sources or
    references, with blank lines between documents. Blank lines at its end do not count. The file is
    the test set's own (`is_own`), or one that a user names.

    Raises:
        ConfigError: the file does not fit the sentences, has another text instead of ids, or has
            one document, or as many as sentences.
    """
    file, count = TextFile(path), len(texts[0])
    lines = [_normalize(line) for line in file.read(0, len(file))]
    while lines and not lines[-1]:
        lines.pop()
    filled = [line for line in lines if line]
    if filled in ([*map(_normalize, text)] for text in texts):
        begins = [bool(now and not before) for before, now in itertools.pairwise(["", *lines])]
        found = (np.cumsum(begins) - 1)[[bool(line) for line in lines]].tolist()
    elif len(filled) == len(lines) == count:
        numbers = {name: number for number, name in enumerate(dict.fromkeys(lines))}
        found = [numbers[line] for line in lines]
    else:
        raise ConfigError(
            f"--segments={path} has {len(lines)} lines, {len(filled)} of them not blank, but the "
            f"test set has {count} sentences, and the lines are not its sources or references; "
            "write the id of each sentence's document, line by line, or the sentences with blank "
            "lines between documents"
        )
    sizes = np.bincount(found)
    if len(sizes) in (1, count) and count > 1:
        described = "one document" if len(sizes) == 1 else "each a document of its own"
        raise ConfigError(f"--segments={path}: the {count} sentences are {described}; leave it out")
    if (alone := int((sizes == 1).sum())) > count / 2 and not is_own:
        raise ConfigError(
            f"--segments={path}: {alone} of {count} lines are there once, as in a text that is not "
            "this test set; write the id of each sentence's document, line by line, or the "
            "sentences of the test set with blank lines between documents"
        )
    return np.array(found)


def _normalize(line: str) -> str:
    return " ".join(line.split())
