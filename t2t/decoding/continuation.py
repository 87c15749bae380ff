"""Continues texts with a language model: the translator's search, begun after a prompt."""

from collections.abc import Sequence
from typing import Any

from t2t.config.data_rules import CONTINUED
from t2t.config.fields import Config, ConfigError
from t2t.data.batch import BOS_ID, EOS_ID
from t2t.data.corpus import DataError
from t2t.data.directions import describe_objective
from t2t.data.tokenizer import Vocabulary
from t2t.decoding.translation import SourcePiece, insert, keep_line
from t2t.decoding.translator import Translator
from t2t.ops.build_model import Members

_HEAD = [EOS_ID, BOS_ID]  # the empty source, and what precedes every text


class Continuer(Translator):
    """Continues prompts; an output is the prompt, as it was given, and what follows it.

    A model of `lm` reads a prompt at once, as the prefix of its cache, and the search begins with
    the prompt's last sub-word, or with BOS if it is empty. For one of `prefix_lm` the prompt is the
    source. So `decoding.min_length`, `decoding.max_extra_length`, scores and lengths are those of
    the sub-words behind the prompt. An output ends before the first stop string; its score is still
    that of all that was searched.
    """

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        members: Members | None = None,
        stop: Sequence[str] = (),
    ):
        """For `stop` see the class; a translator has the other arguments, too.

        Raises:
            ConfigError: the run has no language model, a stop string is empty or in no output, or
                the model has too few positions.
        """
        super().__init__(config, vocabulary, members)
        if "" in stop:
            raise ConfigError("a stop string is empty; leave it out")
        for text in stop:
            if why := vocabulary.tgt.explain_unwritable(text):
                raise ConfigError(f"no output holds the stop string {text!r}: {why}; change it")
        self.stop = tuple(stop)
        self._has_source = config.data.objective == "prefix_lm"  # the prompt
        if not self._has_source:
            self.max_source_length = 2**30  # of a padded prompt

    @staticmethod
    def check_run(config: Config) -> None:
        """Raises ConfigError if the config trains no model to continue a text."""
        objective, kind = config.data.objective, config.model.kind
        if objective not in CONTINUED:
            use = "t2t.generate --fill" if config.data.is_text_alone else "t2t.translate"
            raise ConfigError(
                f"{describe_objective(config.data)} trains no model to continue a text; use {use}, "
                "or train one with data.objective='lm' or 'prefix_lm'"
            )
        if objective == "lm" and kind != "decoder_only":
            raise ConfigError(
                f"model.kind={kind!r} is not known to take a prompt; use model.kind='decoder_only'"
            )

    def record_pieces(self) -> dict[str, Any]:
        """Returns the settings besides the search that bulk generation records."""
        longest = {"longest_piece": self.max_source_length} if self._has_source else {}
        return {"task": "continue", "stop": self.stop} | longest

    def _cut_all(
        self, sentences: Sequence[str], prefixes: Sequence[str] | None, first: int
    ) -> list[list[SourcePiece]]:
        """One piece for each prompt: all before its last sub-word, where the search begins.

        Of `prefix_lm` it is the source, behind `data.prefix`.
        """
        assert prefixes is None
        if self._has_source:
            return self._cut_sources(sentences, first)
        pieces = []
        encoded = zip(sentences, self.vocabulary.tgt.encode(sentences), strict=True)
        for number, (text, ids) in enumerate(encoded, start=first):
            if len(ids) > self._max_hypothesis_length - 1:
                raise DataError(
                    f"prompt {number + 1} has {len(ids) - 1} sub-words, but a text may have "
                    f"{self._max_hypothesis_length} with the next one and EOS (half of "
                    "model.max_positions); shorten the prompt"
                )
            *begun, last = [*_HEAD, *ids[:-1]]
            piece = SourcePiece(begun, (), number, first=last, text=text, given=[keep_line(text)])
            pieces.append([piece])
        return pieces

    def _cut_sources(self, prompts: Sequence[str], first: int) -> list[list[SourcePiece]]:
        pieces = []
        encoded = zip(prompts, self.vocabulary.src.encode(prompts), strict=True)
        for number, (text, ids) in enumerate(encoded, start=first):
            if len(ids) > self.max_source_length:
                raise DataError(
                    f"prompt {number + 1} has {len(ids)} sub-words with data.prefix and EOS, but "
                    f"a source has at most {self.max_source_length} (data.max_length, or the "
                    "model's positions); shorten the prompt"
                )
            pieces.append([SourcePiece(ids, (), number, text=text, given=[keep_line(text)])])
        return pieces

    def _find_longest(self, padded: int) -> int:
        if self._has_source:
            return super()._find_longest(padded)
        return min(self.config.max_extra_length + 1, self._max_hypothesis_length)

    def _find_max_tokens(self, source: list[int]) -> int:
        """The largest number of sub-words behind a prompt, EOS included."""
        if self._has_source:
            return super()._find_max_tokens(source)
        left = self._max_hypothesis_length - (len(source) - 1)  # without BOS, but with the last one
        return min(self.config.max_extra_length + 1, left)

    def _make_text(self, piece: SourcePiece, ids: list[int]) -> str:
        new = self.vocabulary.tgt.decode_behind(ids)
        if not piece.given[0]:  # else the space is the user's, with which a stop string may begin
            new = new.lstrip()
        places = (at for text in self.stop if (at := new.find(text)) >= 0)
        return insert(piece.given, [new[: min(places, default=None)]])
