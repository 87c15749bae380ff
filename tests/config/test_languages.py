"""Language codes, and what follows from them."""

import pytest

from t2t.config.fields import DataConfig
from t2t.config.languages import (
    fill_languages,
    is_text_without_spaces,
    normalize_language,
    writes_spaces,
)
from t2t.config.measure_rules import choose_measure, list_measures

CODES = {
    "de": "de DE deu ger de-DE de_AT deu_Latn",
    "zh": "zh zho chi cmn yue zho_Hans zh_Hant_TW",
    "ast": "ast ast_Latn",
    "": "german zh123 x 中文",
}


@pytest.mark.parametrize(("normal", "codes"), CODES.items())
def test_every_form_of_a_code_is_one_language(normal: str, codes: str) -> None:
    assert {normalize_language(code) for code in codes.split()} == {normal}


def test_text_without_spaces_is_known_by_its_language_and_its_script() -> None:
    assert not any(map(writes_spaces, ("zho_Hans", "ja", "tha", "mya_Mymr")))
    assert all(map(writes_spaces, ("de", "ko", "")))
    assert is_text_without_spaces("这是 GPU 的一句话。")
    assert is_text_without_spaces("ประโยคหนึ่ง")
    assert not is_text_without_spaces("A sentence with 中 in it, of many words. 12")
    assert not is_text_without_spaces("한국어 문장")
    assert not is_text_without_spaces("12 + 3")


def test_only_sources_that_know_their_languages_have_defaults() -> None:
    for source, expected in {
        "text": "",
        "hf": "",
        "phrasebook": "de",
        "text+multi30k": "de",
    }.items():
        assert fill_languages(DataConfig(source)).tgt_language == expected
    assert fill_languages(DataConfig("multi30k", tgt_language="fr")).src_language == "en"
    given = DataConfig("multi30k", src_language="de", tgt_language="fr")
    assert fill_languages(given) == given


def test_measures_are_those_that_mean_something_for_the_run() -> None:
    chinese = list_measures("zh", ["text"], spaces=False)
    assert chinese == (
        "bleu", "chrf", "exact_match", "bleu_lowercase", "chrf_lowercase", "exact_match_lowercase",
        "cer", "spbleu", "metricx", "metricx_qe",
    )  # fmt: skip
    thai = list_measures("tha_Thai", ["text"], spaces=False)
    assert (thai[0], {*thai}) == ("chrf", {*chinese})
    assert {"ter", "bleu_paper"} <= {*list_measures("deu", ["text"], spaces=True)}
    assert "bleu_paper" not in list_measures("", ["text"], spaces=True)
    lower = list_measures("de", ["multi30k"], spaces=True, lowercase=True)
    assert (lower[0], "bleu_multi30k" in lower) == ("bleu_lowercase", True)
    symbols = list_measures("", ["text"], spaces=True, kind="symbols")
    assert symbols == ("exact_match", "exact_match_lowercase", "symbol_error_rate")
    assert choose_measure(None, lowercase=False, kind="symbols") == "exact_match"
    assert {"wer", "cer"} <= {*list_measures("", ["text"], spaces=True, kind="characters")}
    assert choose_measure(None, lowercase=True, language="km") == "chrf_lowercase"
    assert choose_measure(None, lowercase=False, language="ja") == "bleu"
    assert choose_measure("bleu", lowercase=True, language="th", spaces=False) == "bleu"
