"""The search of a model of `transformers`: `generation_config.json` in and out.

`read_search` takes what `generate()` would do without arguments, its defaults included, and names
the rest. `write_search` writes the search of a run, and names what has no counterpart there.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from t2t.config.field_types import MAX_ALPHA
from t2t.config.fields import Config, DecodingConfig
from t2t.data.batch import BOS_ID, EOS_ID, PAD_ID
from t2t.interop.hugging_face_folder import SourceError
from t2t.interop.hugging_face_vocabulary import NO_ROW, Rows
from t2t.interop.json_fields import OFF, ForeignFields

GENERATION = "generation_config.json"

# Fields that `read_search` takes.
_TAKEN = """
    num_beams do_sample temperature top_k top_p length_penalty min_length min_new_tokens max_length
    max_new_tokens early_stopping forced_bos_token_id forced_eos_token_id bad_words_ids
    eos_token_id decoder_start_token_id num_return_sequences renormalize_logits
""".split()
# Fields that change the output of `generate()` and have no counterpart here, with the values that
# change nothing.
_WITHOUT_COUNTERPART: Mapping[str, tuple[Any, ...]] = {
    "no_repeat_ngram_size": (0,),
    "encoder_no_repeat_ngram_size": (0,),
    "repetition_penalty": (1,),
    "encoder_repetition_penalty": (1,),
    "num_beam_groups": (1,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "sequence_bias": ({}, []),
    "force_words_ids": ([],),
    "constraints": ([],),
    "exponential_decay_length_penalty": (),
    "guidance_scale": (1,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "stop_strings": ("", []),
    "max_time": (),
    "watermarking_config": (),
    "token_healing": (False,),
    "forced_decoder_ids": ([],),
    "force_bos_token_to_be_generated": (False,),
}
# The same, of sampling alone.
_OF_SAMPLING: Mapping[str, tuple[Any, ...]] = {
    "min_p": (0,),
    "top_h": (1,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
}
# Fields that change no output: of the cache, of speed, of what else is returned, and records.
_WITHOUT_EFFECT = """
    _from_model_config transformers_version use_cache cache_implementation cache_config
    max_cache_len return_legacy_cache use_mtp low_memory prefill_chunk_size compile_config
    disable_compile continuous_batching_config output_attentions output_hidden_states output_scores
    output_logits return_dict_in_generate remove_invalid_values pad_token_id bos_token_id
    is_assistant num_assistant_tokens num_assistant_tokens_schedule
    assistant_confidence_threshold prompt_lookup_num_tokens max_matching_ngram_size
    assistant_early_exit assistant_lookbehind target_lookbehind assistant_ensemble_weight
    speculation_type diversity_penalty _commit_hash
""".split()
# Fields of generation that a config.json may have, too.
FIELDS = frozenset([*_TAKEN, *_WITHOUT_COUNTERPART, *_OF_SAMPLING]) | {
    "diversity_penalty", "output_scores", "return_dict_in_generate", "remove_invalid_values",
}  # fmt: skip
# Of `generate()`.
_DEFAULTS: Mapping[str, Any] = {
    "num_beams": 1,
    "num_return_sequences": 1,
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "length_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": 0,
    "max_length": 20,
}
_LONGEST = 10_000  # sub-words of a shortest output, beyond which a number is a mistake


class ForeignSearch(NamedTuple):
    """The search of a run, made from the source's search."""

    decoding: DecodingConfig
    warnings: list[str]  # what `generate()` does otherwise, one field each
    max_length: int  # tokens to which `generate()` cuts outputs, without the first input


def read_search(
    given: Mapping[str, Any],
    rows: Rows,
    longest: int,
    start: int | None = None,
    forced: Collection[int] = (),
    file: str = GENERATION,
) -> ForeignSearch:
    """Returns what `generate()` does with these fields and no arguments.

    Args:
        given: of generation_config.json, or of config.json if there is none.
        rows: the original's ids.
        longest: sub-words of a source.
        start: the original's id with which the decoder begins here; None: any.
        forced: ids of the tags with which outputs may begin.
        file: the name of the file, for messages.

    Raises:
        SourceError: a field has no value that `generate()` could take.
    """
    # A field that is null is missing.
    given = {name: value for name, value in given.items() if value is not None}
    fields = ForeignFields(file, given)
    fields.fill(**_DEFAULTS)
    warnings: list[str] = []

    def warn(name: str, text: str) -> None:
        warnings.append(f"{name}={given[name]!r} {text}")

    decoding = _read_strategy(fields, warn)
    is_sampling = decoding.strategy == "sampling"
    # The first input of the decoder counts in lengths, but not as a new token.
    shortest = fields.take("min_length", int, most=_LONGEST) - 1
    decoding.min_length = max(shortest, fields.take("min_new_tokens", int, most=_LONGEST))
    decoding.max_extra_length = max(decoding.max_extra_length, decoding.min_length)
    limit = fields.take("max_length", int, most=math.inf) - 1
    name = "max_length" if "max_length" in given else ""
    if "max_new_tokens" in given:
        name, limit = "max_new_tokens", fields.take("max_new_tokens", int, most=math.inf)
    if name and limit + 1 < longest:  # OPUS-MT's 512 cuts next to nothing
        warn(
            name,
            f"is not taken: an output may have {decoding.max_extra_length} sub-words more than its "
            "source (decoding.max_extra_length), whatever the source's length",
        )
    _check_ids(given, rows, start, forced, warn)
    if fields.flag("renormalize_logits"):
        warn(
            "renormalize_logits",
            "is not taken: probabilities are those of the model, with no share of the sub-words "
            "that are never chosen",
        )
    without = {**_WITHOUT_COUNTERPART, **(_OF_SAMPLING if is_sampling else {})}
    for each, allowed in without.items():
        if each in given and given[each] not in allowed:
            warn(each, "is not taken: the search has nothing like it")
    return ForeignSearch(decoding, warnings, limit)


def check_same_ids(folder: Path, config: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Checks that generation_config.json begins and ends outputs as config.json does.

    Raises:
        SourceError: they disagree.
    """
    for name in ("decoder_start_token_id", "eos_token_id", "forced_bos_token_id"):
        own, other = (values.get(name) for values in (config, given))
        allowed = other if isinstance(other, list) else [other]
        if None not in (own, other) and own != other and own not in allowed:
            raise SourceError(
                f"{folder / GENERATION} and config.json disagree: {name} is {other!r} and {own!r}; "
                "correct one of them in a copy"
            )


def _check_ids(
    given: Mapping[str, Any],
    rows: Rows,
    start: int | None,
    forced: Collection[int],
    warn: Callable[[str, str], None],
) -> None:
    """Warns of fields whose ids differ from the ids that the search here uses."""
    barred = {int(row) for row in rows.row[[PAD_ID, BOS_ID]] if row != NO_ROW}
    ids = given.get("bad_words_ids", [])
    if not isinstance(ids, list) or any(each not in [[row] for row in barred] for each in ids):
        warn("bad_words_ids", "is not taken: outputs may have these sub-words here")
    if "forced_bos_token_id" in given and given["forced_bos_token_id"] not in forced:
        warn(
            "forced_bos_token_id",
            "is not taken: an output begins with the tag of its direction, if it has one",
        )
    name = "decoder_start_token_id"
    if name in given and start is not None and given[name] != start:
        warn(name, f"is not taken: the decoder begins with {start}, as config.json says")
    eos = int(rows.row[EOS_ID])
    for each in ("eos_token_id", "forced_eos_token_id"):
        if each in given and given[each] not in (eos, [eos]):
            warn(each, f"is not taken: outputs end with {eos} alone")


def _read_strategy(fields: ForeignFields, warn: Callable[[str, str], None]) -> DecodingConfig:
    """Returns the search without its lengths."""
    beam_size = fields.take("num_beams", int, 1)
    num_samples = fields.take("num_return_sequences", int, 1)
    temperature, top_p = fields.take("temperature", float), fields.take("top_p", float)
    top_k, alpha = fields.take("top_k", int), fields.take("length_penalty", float, -math.inf)
    fields.allow("early_stopping", True, False, "never")
    decoding = DecodingConfig(length_penalty="length", alpha=1.0, beam_size=beam_size)
    is_sampling = fields.flag("do_sample")
    if is_sampling and beam_size > 1:
        warn("do_sample", "is not taken: a beam of several hypotheses is not drawn at random here")
    elif is_sampling and temperature and top_p:
        decoding.strategy = "sampling"
        decoding.num_samples, decoding.temperature = num_samples, temperature
        decoding.top_k, decoding.top_p = top_k, min(top_p, 1.0)  # more restricts nothing, either
        return decoding
    elif is_sampling:
        name = "top_p" if temperature else "temperature"
        warn(name, "becomes greedy search (a beam of one): it leaves the likeliest sub-word alone")
    if num_samples != 1:
        warn("num_return_sequences", "is not taken: use --n_best of t2t.translate")
    if beam_size == 1:
        return decoding
    decoding.alpha = min(max(alpha, 0.0), MAX_ALPHA)
    if decoding.alpha != alpha:
        warn(
            "length_penalty",
            f"becomes decoding.alpha={decoding.alpha:g}, the nearest that the search has",
        )
    if fields.get("early_stopping") is True:
        warn(
            "early_stopping",
            "is not taken: the search ends when no better output is possible",
        )
    return decoding


def list_unknown(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of generation_config.json that are not known here, unless they are off."""
    known = {*FIELDS, *_WITHOUT_EFFECT}
    return {name: value for name, value in given.items() if name not in known and value not in OFF}


def list_generation(given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of config.json that belong to generation."""
    names = {*FIELDS, "pad_token_id", "bos_token_id"}
    return {name: value for name, value in given.items() if name in names and value is not None}


def write_search(
    config: Config,
    rows: Rows,
    ids: Mapping[str, Any],
    *,
    forced: Sequence[int] = (),
    original: Mapping[str, Any] | None = None,
    ends_forced: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """Returns the content of generation_config.json, and notes on what it cannot say.

    Args:
        config: of the run.
        rows: the ids that are written.
        ids: of the special symbols: pad_token_id, eos_token_id and decoder_start_token_id.
        forced: ids of the tags with which the outputs of each direction begin.
        original: the fields from which the run was imported; they go out as they came in, unless
            the run has another search by now.
        ends_forced: whether `generate()` of the family ends an output at its limit with EOS.
    """
    if original and _is_kept(original, config.decoding, rows):
        values, notes = dict(original), list[str]()
    else:
        values, notes = _write_strategy(config, rows)
        if ends_forced:
            values["forced_eos_token_id"] = ids["eos_token_id"]
    values = {**ids, **values}
    name = "forced_bos_token_id"
    if len({*forced}) == 1:
        values[name] = forced[0]
    elif forced and values.get(name) not in forced:
        notes.append(
            f"{name} is not written, since the run has several target languages: give generate() "
            f"the id of the one that you want ({', '.join(map(str, dict.fromkeys(forced)))})"
        )
    return values, notes


def _is_kept(original: Mapping[str, Any], decoding: DecodingConfig, rows: Rows) -> bool:
    """Returns whether fields still say the search of a run, and `generate()` takes them.

    It refuses to sample at temperature 0, which is greedy search here.
    """
    is_greedy = decoding.strategy == "beam" and decoding.beam_size == 1
    is_taken = not (is_greedy and original.get("do_sample"))
    return is_taken and read_search(original, rows, 0).decoding == decoding


def _write_strategy(config: Config, rows: Rows) -> tuple[dict[str, Any], list[str]]:
    """The fields that follow from `decoding`."""
    decoding, notes = config.decoding, []
    barred = [int(row) for row in rows.row[[PAD_ID, BOS_ID]] if row != NO_ROW]
    values: dict[str, Any] = {
        "bad_words_ids": [[row] for row in barred],
        "max_length": config.data.max_length + decoding.max_extra_length + 1,
        "num_beams": 1 if decoding.strategy == "sampling" else decoding.beam_size,
    }
    if decoding.min_length:
        values["min_new_tokens"] = decoding.min_length
    if decoding.strategy == "sampling":
        values |= {"do_sample": True, "num_return_sequences": decoding.num_samples}
        values |= {name: getattr(decoding, name) for name in ("temperature", "top_k", "top_p")}
        if decoding.sampling_seed:
            notes.append(_describe_loss("sampling_seed", decoding.sampling_seed))
    elif decoding.beam_size > 1:
        values["early_stopping"] = "never"
        values["length_penalty"] = 0.0 if decoding.length_penalty == "none" else decoding.alpha
        if decoding.length_penalty == "gnmt":
            notes.append(
                f"decoding.length_penalty='gnmt' becomes length_penalty={decoding.alpha:g}, which "
                "divides by length ** alpha: beam search of transformers may choose another output"
            )
    default = DecodingConfig()
    for name in ("mbr", "max_extra_length", "max_source_length", "split_sentences"):
        if (value := getattr(decoding, name)) != getattr(default, name):
            notes.append(_describe_loss(name, value))
    return values, notes


def _describe_loss(name: str, value: Any) -> str:
    return f"decoding.{name}={value!r} is not written: generate() has nothing like it"
