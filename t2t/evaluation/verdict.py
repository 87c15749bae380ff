"""A comparison in plain words."""

import math

from t2t.evaluation.significance import Comparison, Evidence


def say(
    comparison: Comparison,
    names: tuple[str, str],
    measure: str,
    num_sentences: int,
    num_seeds: tuple[int, int],
) -> str:
    """Better, worse or not distinguishable: the second arm against the first, and why."""
    first, second = names
    sentences, seeds = comparison.sentences, comparison.seeds
    evidence = f"{_describe(sentences)}, paired bootstrap over {num_sentences} sentences"
    if seeds:
        evidence += f"; {_describe(seeds)}, t-test over {num_seeds[1]} and {num_seeds[0]} seeds"
    facts = f"{comparison.difference:+.2f} {measure} ({evidence})"
    if comparison.distinguishable:
        direction = "better" if comparison.better else "worse"
        return f"{second} is {direction} than {first}: {facts}. {_describe_reach(comparison)}"
    culprits = []
    if not sentences.convincing:
        culprits.append(f"with these {num_sentences} sentences")
    if seeds and not seeds.convincing:
        culprits.append("with so few seeds")
    advice = _advise(comparison, num_sentences)
    return (
        f"{second} is not distinguishable from {first} {' and '.join(culprits)}: {facts}. {advice}"
    ).rstrip()


def _describe(evidence: Evidence) -> str:
    low, high = evidence.interval
    return f"95% interval {low:+.2f} to {high:+.2f}, p = {evidence.p_value:.3f}"


def _describe_reach(comparison: Comparison) -> str:
    """Which chance the verdict covers."""
    if comparison.seeds:
        return "This covers the choice of the sentences and of the seeds."
    return (
        "This covers the choice of the sentences, not that of the seed: with one run an arm, "
        "another seed may give another verdict."
    )


def _advise(comparison: Comparison, num_sentences: int) -> str:
    """What it would take to see a difference of this size."""
    low, high = comparison.sentences.interval
    if comparison.sentences.convincing:
        return "More seeds would tell."
    if low <= 0 <= high and comparison.difference:
        ratio = (high - low) / 2 / abs(comparison.difference)
        digits = 10 ** max(math.floor(math.log10(num_sentences * ratio**2)) - 1, 0)
        needed = math.ceil(num_sentences * ratio**2 / digits) * digits
        if num_sentences < needed <= 1_000_000:
            return f"To show a difference of this size would take about {needed:,} sentences."
    return ""
