"""Numbers in words, years and times of the clock."""

import pytest

from t2t.phrasebook.numbers import clock_time, english_number, german_number, year


@pytest.mark.parametrize(
    ("n", "english", "german"),
    [
        (0, "zero", "null"),
        (1, "one", "eins"),
        (12, "twelve", "zwölf"),
        (16, "sixteen", "sechzehn"),
        (21, "twenty-one", "einundzwanzig"),
        (30, "thirty", "dreißig"),
        (77, "seventy-seven", "siebenundsiebzig"),
        (101, "one hundred one", "einhunderteins"),
        (342, "three hundred forty-two", "dreihundertzweiundvierzig"),
        (1000, "one thousand", "eintausend"),
        (2017, "two thousand seventeen", "zweitausendsiebzehn"),
        (
            9999,
            "nine thousand nine hundred ninety-nine",
            "neuntausendneunhundertneunundneunzig",
        ),
    ],
)
def test_numbers_are_spelt_out(n: int, english: str, german: str) -> None:
    assert (english_number(n), german_number(n)) == (english, german)


def test_number_words_are_distinct() -> None:
    assert len({english_number(n) for n in range(10_000)}) == 10_000
    assert len({german_number(n) for n in range(10_000)}) == 10_000


def test_years_count_hundreds_until_1999() -> None:
    assert year(1984) == ("in nineteen eighty-four", "im Jahr neunzehnhundertvierundachtzig")
    assert year(1906) == ("in nineteen oh six", "im Jahr neunzehnhundertsechs")
    assert year(1900) == ("in nineteen hundred", "im Jahr neunzehnhundert")
    assert year(2005) == ("in two thousand five", "im Jahr zweitausendfünf")


def test_half_hours_look_forward_in_german() -> None:
    assert clock_time(1, 0) == ("at one o'clock", "um ein Uhr")
    assert clock_time(1, 15) == ("at quarter past one", "um Viertel nach eins")
    assert clock_time(3, 30) == ("at half past three", "um halb vier")
    assert clock_time(12, 45) == ("at quarter to one", "um Viertel vor eins")
