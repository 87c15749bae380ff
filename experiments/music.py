"""Writes pieces of a small music grammar, one a line: `python -m experiments.music FOLDER`.

A piece has two sections; a section a form and four bars; a bar a chord and three beats. An event is
a form, a chord, the note of a beat, or "-", which holds the note before:

    AABA C: e - g C: e - g F: a - f C: e - g ABAB G: d - b C: c - c G: d - b C: c - c

- The key and the rhythm (the beats that have a note) are drawn once for a piece, a form for each
  section.
- The first chord is that of the key. Those of other new bars follow by a Markov chain.
- A note is the chord's root, third or fifth.
- In a section a bar with the letter of an earlier one is that bar again.

A piece tells all draws that made it, so its probability is their product, and its entropy the sum
of theirs. The program prints both in nats per event.
"""

import argparse
import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

PIECES = {"train": 40_000, "validation": 500, "test": 1000}
FORMS = ("AABA", "ABAB", "AABB")
SECTIONS = 2
NOTES = "c c# d d# e f f# g g# a a# b".split()
RHYTHMS = ((1, 1, 1), (1, 0, 1), (1, 1, 0))  # 1: a note, 0: held
# Chords of a key: semitones from the key to the root, and from the root to the third.
CHORDS = {"I": (0, 4), "IV": (5, 4), "V": (7, 4), "vi": (9, 3)}
NEXT = np.array([  # row: a chord; column: the probability of the next one
    [0.1, 0.4, 0.3, 0.2],
    [0.3, 0.1, 0.5, 0.1],
    [0.6, 0.1, 0.1, 0.2],
    [0.1, 0.5, 0.3, 0.1],
])  # fmt: skip
TONES = (0.5, 0.3, 0.2)  # probabilities of root, third and fifth
EVENTS = SECTIONS * (1 + 4 * (1 + 3)) + 1  # of a piece: forms, bars and the end


def compute_entropy() -> float:
    """The entropy of a piece in nats: the sum over its draws, by the chain rule.

    Each form has two new bars.
    """
    bars = 2 * SECTIONS
    notes = bars * np.mean([sum(rhythm) for rhythm in RHYTHMS]) * _entropy(TONES)
    rows = np.array([_entropy(row) for row in NEXT])
    shares = np.eye(len(CHORDS))[0]  # of the chords of a new bar; the first is I
    chords = 0.0
    for _ in range(bars - 1):
        chords += shares @ rows
        shares = shares @ NEXT
    once = math.log(len(NOTES)) + math.log(len(RHYTHMS)) + SECTIONS * math.log(len(FORMS))
    return float(once + chords + notes)


def _entropy(probabilities: Sequence[float]) -> float:
    return -sum(p * math.log(p) for p in probabilities)


def draw_bar(
    draw: random.Random, key: int, chord: str, rhythm: Sequence[int]
) -> tuple[list[str], float]:
    """Returns the events of a bar, and the log-probability of its notes."""
    offset, third = CHORDS[chord]
    root = key + offset
    events = [NOTES[root % 12].capitalize() + ("m:" if third == 3 else ":")]
    log_prob = 0.0
    for onset in rhythm:
        if onset:
            [tone] = draw.choices(range(3), TONES)
            log_prob += math.log(TONES[tone])
            events.append(NOTES[(root + (0, third, 7)[tone]) % 12])
        else:
            events.append("-")
    return events, log_prob


def draw_piece(draw: random.Random) -> tuple[list[str], float]:
    """Returns the events of a piece, without its end, and its log-probability in nats."""
    key, rhythm = draw.randrange(len(NOTES)), draw.choice(RHYTHMS)
    log_prob = -math.log(len(NOTES)) - math.log(len(RHYTHMS))
    names, chord, events = [*CHORDS], 0, []
    for section in range(SECTIONS):
        form, bars = draw.choice(FORMS), []
        log_prob -= math.log(len(FORMS))
        for new in range(2):
            if section or new:
                last, [chord] = chord, draw.choices(range(len(NEXT)), NEXT[chord])
                log_prob += math.log(NEXT[last, chord])
            bar, of_notes = draw_bar(draw, key, names[chord], rhythm)
            bars.append(bar)
            log_prob += of_notes
        events += [form, *(event for letter in form for event in bars["AB".index(letter)])]
    return events, log_prob


def write_pieces(folder: Path, split: str, count: int) -> float:
    """Writes SPLIT.music; returns the nats per event of these pieces by their probability."""
    draw = random.Random(split)
    pieces = [draw_piece(draw) for _ in range(count)]
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(" ".join(events) + "\n" for events, _ in pieces)
    (folder / f"{split}.music").write_text(text, "utf-8")
    return -sum(log_prob for _, log_prob in pieces) / (count * EVENTS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the three files are written")
    folder = parser.parse_args().folder
    for split, count in PIECES.items():
        print(f"{split}: {write_pieces(folder, split, count):.4f} nats per event")
    print(f"entropy of the grammar: {compute_entropy() / EVENTS:.4f} nats per event")
