"""Minimum Bayes risk: chooses the candidate with the highest expected utility.

The candidates of a sentence are its samples or its n best hypotheses, and they are also the
references. Samples count equally, as often as they were drawn; hypotheses count by the model's
probability, normalised over the list. The utility is a measure of a sentence; sacreBLEU's BLEU and
chrF of all pairs are computed here from n-grams that are counted once.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU

from t2t.decoding.translation import Translation, drop_repeated

# From texts to the utility of each (row) with each as its reference (column).
Utilities = Callable[[Sequence[str]], Float[np.ndarray, "n n"]]


def choose_by_utility(
    candidates: Sequence[Translation], compute: Utilities, sampled: bool
) -> Translation:
    """The candidate with the highest expected utility; of equals the first."""
    distinct = drop_repeated(candidates)
    if len(distinct) == 1:
        return candidates[0]
    log_probs = np.array([0.0 if sampled else candidate.log_prob for candidate in candidates])
    share = np.exp(log_probs - log_probs.max())
    weights = {candidate.text: 0.0 for candidate in distinct}
    for candidate, each in zip(candidates, share, strict=True):
        weights[candidate.text] += each
    utilities = compute([*weights]) @ np.array([*weights.values()])
    return distinct[int(np.argmax(utilities))]


def compute_utilities(texts: Sequence[str], metric: Metric) -> Float[np.ndarray, "n n"]:
    """The utility of each text (row) with each as its reference (column).

    Equal to `metric.sentence_score`, but each text's n-grams are counted once, and the utility of a
    text with itself is 100: sacreBLEU has 0 for an empty one.
    """
    counted = [_count_ngrams(text, metric) for text in texts]
    orders = range(len(counted[0]))
    matches = [_count_matches([counts[order] for counts in counted]) for order in orders]
    totals = [[sum(counts[order].values()) for order in orders] for counts in counted]
    utilities = np.zeros((len(texts), len(texts)))
    for row, hypothesis in enumerate(totals):
        for column, reference in enumerate(totals):
            common = [int(match[row, column]) for match in matches]
            if isinstance(metric, BLEU):
                stats = [hypothesis[0], reference[0], *common, *hypothesis]
            else:
                triples = zip(hypothesis, reference, common, strict=True)
                stats = [x for h, r, m in triples for x in (h if r else 0, r, m)]
            utilities[row, column] = metric._compute_score_from_stats(stats).score
    np.fill_diagonal(utilities, 100)
    return utilities


def _count_ngrams(text: str, metric: Metric) -> list[Mapping[object, int]]:
    """The n-grams of a text by order, as sacreBLEU counts them."""
    info = metric._extract_reference_info([metric._preprocess_segment(text)])["ref_ngrams"]
    if not isinstance(metric, BLEU):
        return list(info[0])
    by_order: list[Mapping[object, int]] = []
    for order in range(1, metric.max_ngram_order + 1):
        by_order.append(Counter({n: count for n, count in info.items() if len(n) == order}))
    return by_order


def _count_matches(counted: Sequence[Mapping[object, int]]) -> Float[np.ndarray, "n n"]:
    """The number of n-grams that two texts have in common, for each pair of texts."""
    columns: dict[object, int] = {}
    for counts in counted:
        for ngram in counts:
            columns.setdefault(ngram, len(columns))
    table = np.zeros((len(counted), len(columns)))
    for row, counts in enumerate(counted):
        table[row, [columns[ngram] for ngram in counts]] = [*counts.values()]
    return np.stack([np.minimum(own, table).sum(axis=1) for own in table])
