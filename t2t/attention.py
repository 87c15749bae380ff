"""Shows what every head attends to: `python -m t2t.attention --workdir=RUN "A girl climbs."`.

Writes one HTML page, RUN/attention.html: heads of encoder, decoder and cross-attention as maps,
each with its entropy, its role and what the model loses without it. It needs no network.
"""

import dataclasses
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import tqdm
from absl import flags
from jaxtyping import Array, Int

from t2t import cli
from t2t.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.compilation_cache import keep_compiled
from t2t.config import Config, ConfigError, MeshConfig
from t2t.config_json import load_config
from t2t.data.cache import tokenize_corpus
from t2t.data.corpus import ListCorpus, Pair
from t2t.data.pipeline import make_batch
from t2t.data.sources import list_splits, open_split
from t2t.data.tokenizer import Tokenizer, Vocabulary
from t2t.decoding.translator import Translator
from t2t.evaluation import head_roles
from t2t.evaluation.attention_page import HeadView, Page, StackView, render_page
from t2t.evaluation.bleu import score_bleu
from t2t.evaluation.head_roles import Keys, Profile, RoleTally, find_rare
from t2t.model.encoder_decoder import Params
from t2t.model.heads import Head, HeadWeights, find_weights, list_heads, switch_off
from t2t.model.kinds import merge
from t2t.model.transformer import Transformer
from t2t.sharding import make_mesh, replicate
from t2t.training.checkpoint import restore_params
from t2t.training.run_directory import RunError
from t2t.training.validation import CorpusScorer

MAX_LENGTH = 256  # sub-words of a sentence, the end mark included: no screen shows more
_ROWS = 8  # sentences whose weights are in memory together
_TITLES = {
    "encoder": "Encoder self-attention",
    "decoder": "Decoder self-attention",
    "cross": "Cross-attention: the decoder looks at the source",
}


@dataclasses.dataclass(frozen=True)
class Request:
    """What to show, as on the command line."""

    workdir: Path
    sentence: str
    checkpoint: str = "best"  # last | best | STEP | avg:COUNT
    importance: int = 100  # validation pairs on which heads are measured; 0: none
    measure: str = "loss"  # loss | bleu
    output: str = ""  # empty: RUN/attention.html


class Sample(NamedTuple):
    """The first pairs of the validation split, and how often each sub-word occurs in all of it."""

    pairs: Sequence[Pair]
    src_counts: Counter[int]
    tgt_counts: Counter[int]


def show_attention(request: Request) -> Path:
    """Translates, weighs, measures and writes; where the page is.

    Raises:
        ConfigError, DataError, RunError, VocabularyError: what is asked for is not there, does not
            fit together, or cannot be written.
    """
    config = load_config(request.workdir / "config.json")
    if config.model.kind != "transformer":
        raise ConfigError(
            f"model.kind={config.model.kind!r} has no heads to show; use the run of a transformer"
        )
    vocabulary = Vocabulary.load(request.workdir / "vocab")
    translator = Translator(config, vocabulary)
    limit = min(MAX_LENGTH, translator.limit)
    check_sentence(request.sentence, vocabulary, limit)
    sample = read_sample(config, vocabulary, request.importance, limit)
    output = prepare_output(request)
    params, label = restore_params(request.workdir, request.checkpoint)
    translation, changes, measure = run_model(request, config, translator, params, sample)
    shown = (request.sentence, translation)
    [weights] = weigh_pairs(translator, params, [shown])
    profiles = profile_heads(translator, params, sample, shown)
    page = Page(
        run=request.workdir.resolve().name,
        checkpoint=label,
        sentence=request.sentence,
        translation=translation,
        stacks=make_stacks(vocabulary, shown, weights, profiles, changes),
        sample=describe_sample(sample),
        measure=measure,
        rules=(head_roles.__doc__ or "").strip(),
    )
    write_page(output, render_page(page))
    return output


def check_sentence(sentence: str, vocabulary: Vocabulary, limit: int) -> None:
    """Refuses what makes no map."""
    [ids] = vocabulary.src.encode([sentence])
    if not 1 < len(ids) <= limit:
        raise ConfigError(
            f"the sentence has {len(ids) - 1} sub-words; give one of 1 to {limit - 1}"
        )


def read_sample(config: Config, vocabulary: Vocabulary, count: int, limit: int) -> Sample | None:
    """The first `count` validation pairs of at most `limit` sub-words on either side."""
    if count < 0:
        raise ConfigError(f"--importance={count} must not be negative; 0 leaves it out")
    if count == 0:
        return None
    if "validation" not in list_splits(config.data):
        raise ConfigError(
            f"--importance={count} needs a validation split, and this run has none; "
            "use --importance=0"
        )
    corpus = list(open_split(config.data, "validation"))
    src, tgt = encode_pairs(vocabulary, corpus)
    fits = [max(map(len, ids)) <= limit for ids in zip(src, tgt, strict=True)]
    pairs = [pair for pair, fit in zip(corpus, fits, strict=True) if fit][:count]
    if not pairs:
        raise ConfigError(
            f"--importance={count}: every validation pair has more than {limit} sub-words; "
            "use --importance=0"
        )
    return Sample(pairs, *(Counter(i for ids in side for i in ids) for side in (src, tgt)))


def prepare_output(request: Request) -> Path:
    """Where the page goes; that it cannot be written is found out before the work."""
    path = Path(request.output or request.workdir / "attention.html").expanduser()
    if path.is_dir():
        raise ConfigError(f"--output={path} is a folder; name a file, as {path / 'attention.html'}")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise RunError(
            f"{path.parent} cannot be written: {error.strerror}; choose another --output"
        ) from None


def describe_sample(sample: Sample | None) -> str:
    """On what the heads' profiles rest, as the page says it."""
    if sample is None:
        return "are of this sentence alone; rare tokens are told only with --importance"
    return f"are means over {len(sample.pairs)} validation sentences, under teacher forcing"


def run_model(
    request: Request, config: Config, translator: Translator, params: Params, sample: Sample | None
) -> tuple[str, dict[Head, float], str | None]:
    """On all devices: the translation, what each head is worth, and what that is measured in."""
    mesh = make_mesh(MeshConfig())
    with jax.set_mesh(mesh), tempfile.TemporaryDirectory() as folder:
        params = replicate(params, mesh)
        [translation] = translator.translate(params, [request.sentence])
        if sample is None:
            return translation.text, {}, None
        sources, references = zip(*sample.pairs, strict=True)
        corpus = ListCorpus("sample", sample.pairs)
        tokenized = tokenize_corpus(corpus, translator.vocabulary, Path(folder), progress=False)
        scorer = CorpusScorer(translator.structure, tokenized, config.data, mesh)

        def measure_badness(params: Params) -> float:
            if request.measure == "loss":
                return scorer.score(params).mean
            hypotheses = [found.text for found in translator.translate(params, sources)]
            return -score_bleu(hypotheses, references)["bleu"].value

        whole = measure_badness(params)
        heads = tqdm.tqdm(
            list(list_heads(config.model)), unit="head", disable=not sys.stderr.isatty()
        )
        changes = {head: measure_badness(switch_off(params, head)) - whole for head in heads}
    described = {
        "loss": f"what the loss, {whole:.4f} nats a sub-word without smoothing, gains",
        "bleu": f"what sacreBLEU, {-whole:.2f} with all heads, loses",
    }
    return translation.text, changes, f"{described[request.measure]} when this head alone is off"


def weigh_pairs(
    translator: Translator, params: Params, pairs: Sequence[Pair]
) -> Iterator[HeadWeights]:
    """The weights for each pair, N H T S without padding; one program serves all of them."""
    vocabulary = translator.vocabulary

    @jax.jit
    def run(params: Params, src: Int[Array, "B S"], tgt_in: Int[Array, "B T"]) -> HeadWeights:
        model = merge(translator.structure, params)
        assert isinstance(model, Transformer)
        return find_weights(model, src, tgt_in)

    src, tgt = encode_pairs(vocabulary, pairs)
    rows = min(_ROWS, len(pairs))
    src_width, tgt_width = (max(map(len, side)) for side in (src, tgt))
    for start in range(0, len(pairs), rows):
        sources, targets = src[start : start + rows], tgt[start : start + rows]
        batch = make_batch(pad(sources, rows, src_width), pad(targets, rows, tgt_width))
        found: HeadWeights = jax.device_get(run(params, batch.src, batch.tgt_in))
        for row, (s, t) in enumerate(zip(map(len, sources), map(len, targets), strict=True)):
            encoder, decoder, cross = (stack[:, row] for stack in found)
            yield HeadWeights(encoder[..., :s, :s], decoder[..., :t, :t], cross[..., :t, :s])


def encode_pairs(
    vocabulary: Vocabulary, pairs: Sequence[Pair]
) -> tuple[list[list[int]], list[list[int]]]:
    """The ids of the sources and of the targets, each ending in EOS."""
    sources, targets = zip(*pairs, strict=True)
    return vocabulary.src.encode(sources), vocabulary.tgt.encode(targets)


def pad(sentences: Sequence[list[int]], rows: int, width: int) -> Int[np.ndarray, "B T"]:
    """Ids in the first rows, padding behind them."""
    padded = np.full((rows, width), PAD_ID, np.int32)
    for row, ids in enumerate(sentences):
        padded[row, : len(ids)] = ids
    return padded


def profile_heads(
    translator: Translator, params: Params, sample: Sample | None, shown: Pair
) -> dict[str, list[list[Profile]]]:
    """The profiles of each stack's heads, over the sample or, without one, over what is shown."""
    vocabulary, pairs = translator.vocabulary, sample.pairs if sample else [shown]
    tallies = {stack: RoleTally(stack) for stack in HeadWeights._fields}
    encoded = zip(*encode_pairs(vocabulary, pairs), strict=True)
    for (src, tgt), weights in zip(encoded, weigh_pairs(translator, params, pairs), strict=True):
        sources = describe_keys(vocabulary.src, src, sample and sample.src_counts)
        targets = describe_keys(vocabulary.tgt, [BOS_ID, *tgt[:-1]], sample and sample.tgt_counts)
        for stack, keys in HeadWeights(sources, targets, sources)._asdict().items():
            tallies[stack].add(getattr(weights, stack), keys)
    return {stack: tally.profiles() for stack, tally in tallies.items()}


def describe_keys(tokenizer: Tokenizer, ids: list[int], counts: Counter[int] | None) -> Keys:
    """What the rules for roles need; `counts`: how often each sub-word occurs."""
    marked = [
        token in (BOS_ID, EOS_ID) or not any(map(str.isalnum, piece))
        for token, piece in zip(ids, tokenizer.pieces(ids), strict=True)
    ]
    separators = np.array(marked)
    if counts is None:
        return Keys(separators)
    return Keys(separators, find_rare([counts[token] for token in ids], separators))


def make_stacks(
    vocabulary: Vocabulary,
    shown: Pair,
    weights: HeadWeights,
    profiles: Mapping[str, list[list[Profile]]],
    changes: Mapping[Head, float],
) -> list[StackView]:
    """All heads as the page shows them."""
    [src], [tgt] = encode_pairs(vocabulary, [shown])
    source, written = spell(vocabulary.src, src), spell(vocabulary.tgt, tgt)
    read = spell(vocabulary.tgt, [BOS_ID, *tgt[:-1]])
    axes = {"encoder": (source, source), "decoder": (read, read), "cross": (written, source)}
    return [
        StackView(
            stack,
            _TITLES[stack],
            *axes[stack],
            [
                [
                    HeadView(
                        stack,
                        layer + 1,
                        number + 1,
                        maps[number],
                        profiles[stack][layer][number],
                        changes.get(Head(stack, layer, number)),
                    )
                    for number in range(len(maps))
                ]
                for layer, maps in enumerate(layers)
            ],
        )
        for stack, layers in weights._asdict().items()
    ]


def spell(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Pieces for narrow labels, with a dot where a word begins."""
    return [piece.replace("▁", "·") for piece in tokenizer.pieces(ids)]


def write_page(path: Path, html: str) -> None:
    """Writes a file that is never seen half."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(html, "utf-8")
        draft.replace(path)
    except OSError as error:
        raise RunError(f"{path} cannot be written: {error.strerror}; make room there") from None


def main(operands: Sequence[str]) -> None:
    """Shows what the flags ask for; the sentence may be given as several words."""
    values = flags.FLAGS
    keep_compiled()
    request = Request(
        cli.read_workdir(),
        " ".join(operands),
        values.checkpoint,
        values.importance,
        values.measure,
        values.output,
    )
    print(show_attention(request))


if __name__ == "__main__":
    cli.define_workdir()
    flags.DEFINE_string("checkpoint", "best", "last, best, a step, or avg:5 for the last 5's mean.")
    flags.DEFINE_integer(
        "importance",
        100,
        "Heads are measured, and switched off in turn, on so many validation sentences; 0: not.",
    )
    flags.DEFINE_enum(
        "measure", "loss", ["loss", "bleu"], "What tells a head's importance; bleu takes longer."
    )
    flags.DEFINE_string("output", "", "Where the page goes; default: RUN/attention.html.")
    cli.run(main, operands="the sentence")
