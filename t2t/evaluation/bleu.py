"""How good translations are: BLEU and chrF of a corpus, each with its definition.

BLEU compares only where text was treated alike, so besides sacreBLEU's standard there are two
measures in which results were published. All of them are given raw text.
"""

import dataclasses
import re
from collections.abc import Callable, Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacremoses import MosesPunctNormalizer, MosesTokenizer

Metric = BLEU | CHRF


@dataclasses.dataclass(frozen=True)
class Score:
    """One measure of one corpus."""

    value: float  # 0 to 100
    definition: str  # what was done to the text, and sacreBLEU's signature
    detail: str  # sacreBLEU's line: BLEU's four precisions, brevity penalty and lengths in words


def score_corpus(
    hypotheses: Sequence[str], references: Sequence[str], tgt_language: str
) -> dict[str, Score]:
    """All measures by name: bleu, chrf, bleu_lowercase, bleu_multi30k, bleu_paper.

    Raises:
        ValueError: there is not one hypothesis for each reference, or none at all.
    """
    return score_bleu(hypotheses, references) | {
        "bleu_lowercase": _score(BLEU(lowercase=True), hypotheses, references),
        "bleu_multi30k": _score_tokenised(
            hypotheses,
            references,
            _make_multi30k_tokeniser(tgt_language),
            f"lower-cased, Moses punctuation normalised and Moses tokenised ({tgt_language})",
        ),
        "bleu_paper": _score_tokenised(
            hypotheses,
            references,
            _make_paper_tokeniser(tgt_language),
            f"Unicode punctuation replaced, Moses tokenised ({tgt_language})"
            + (", compounds split at hyphens" if tgt_language == "de" else ""),
        ),
    }


def score_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Score]:
    """The two that need no tokenised text, hence quick enough to validate with: bleu and chrf."""
    if not hypotheses or len(hypotheses) != len(references):
        raise ValueError(
            f"{len(hypotheses)} hypotheses and {len(references)} references; a score needs one "
            "hypothesis for each reference, line by line, and at least one"
        )
    return {
        "bleu": _score(BLEU(), hypotheses, references),
        "chrf": _score(CHRF(), hypotheses, references),
    }


def _score(
    metric: Metric, hypotheses: Sequence[str], references: Sequence[str], treatment: str = ""
) -> Score:
    score = metric.corpus_score(hypotheses, [references])
    signature = str(metric.get_signature())
    return Score(
        value=score.score,
        definition=f"{treatment}; {signature}" if treatment else signature,
        detail=str(score),
    )


def _score_tokenised(
    hypotheses: Sequence[str],
    references: Sequence[str],
    tokenise: Callable[[str], str],
    treatment: str,
) -> Score:
    """BLEU of words between blanks, without smoothing."""
    metric = BLEU(tokenize="none", smooth_method="none", force=True)
    return _score(metric, [*map(tokenise, hypotheses)], [*map(tokenise, references)], treatment)


def _make_multi30k_tokeniser(language: str) -> Callable[[str], str]:
    """As in Wu et al. 2021, whose text-only Transformer has 41.02 on test_2016_flickr."""
    normaliser, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)

    def tokenise(line: str) -> str:
        text = normaliser.normalize(line.lower())
        return str(tokenizer.tokenize(text, return_str=True, escape=False))

    return tokenise


def _make_paper_tokeniser(language: str) -> Callable[[str], str]:
    """As in the paper's table 2: "rot-weiß" counts as three words in German."""
    normaliser, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)

    def tokenise(line: str) -> str:
        text = normaliser.replace_unicode_punct(line)
        text = str(tokenizer.tokenize(text, return_str=True, escape=False))
        return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", text) if language == "de" else text

    return tokenise
