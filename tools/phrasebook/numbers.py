"""Numbers in words, years and clock times."""

from tools.phrasebook.text import Text

ENGLISH_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen"
).split()
ENGLISH_TENS = ". . twenty thirty forty fifty sixty seventy eighty ninety".split()
GERMAN_UNITS = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn "
    "fünfzehn sechzehn siebzehn achtzehn neunzehn"
).split()
GERMAN_TENS = ". . zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def english_number(n: int) -> str:
    """The words for 0 <= n < 10,000: "three hundred forty-two"."""
    for unit, name in ((1000, "thousand"), (100, "hundred")):
        if n >= unit:
            rest = n % unit
            return f"{english_number(n // unit)} {name}" + (rest > 0) * f" {english_number(rest)}"
    if n < 20:
        return ENGLISH_UNITS[n]
    return ENGLISH_TENS[n // 10] + (n % 10 > 0) * f"-{ENGLISH_UNITS[n % 10]}"


def german_number(n: int) -> str:
    """The word for 0 <= n < 10,000, units before tens: "dreihundertzweiundvierzig"."""
    for unit, name in ((1000, "tausend"), (100, "hundert")):
        if n >= unit:
            rest = n % unit
            return _german_factor(n // unit) + name + (german_number(rest) if rest else "")
    if n < 20:
        return GERMAN_UNITS[n]
    return (f"{_german_factor(n % 10)}und" if n % 10 else "") + GERMAN_TENS[n // 10]


def _german_factor(n: int) -> str:
    return "ein" if n == 1 else german_number(n)


def year(n: int) -> Text:
    """A year in words; before 2000 both languages count hundreds: "nineteen eighty-four"."""
    if n >= 2000:
        return Text(f"in {english_number(n)}", f"im Jahr {german_number(n)}")
    century, rest = divmod(n, 100)
    years = ("oh " if rest < 10 else "") + english_number(rest) if rest else "hundred"
    return Text(
        f"in {english_number(century)} {years}",
        f"im Jahr {german_number(century)}hundert{german_number(rest) if rest else ''}",
    )


def clock_time(hour: int, minutes: int) -> Text:
    """A time in words; 1 <= hour <= 12, and minutes are 0, 15, 30 or 45.

    "half past three" is "halb vier": the German names the next hour.
    """
    after = hour % 12 + 1
    english, german = {
        0: (f"{english_number(hour)} o'clock", f"{_german_factor(hour)} Uhr"),
        15: (f"quarter past {english_number(hour)}", f"Viertel nach {german_number(hour)}"),
        30: (f"half past {english_number(hour)}", f"halb {german_number(after)}"),
        45: (f"quarter to {english_number(after)}", f"Viertel vor {german_number(after)}"),
    }[minutes]
    return Text(f"at {english}", f"um {german}")
