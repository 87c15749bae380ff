"""The phrasebook: an embedded English-German corpus, generated from a small synchronous grammar.

Every pair is rendered twice from one structure (noun phrase, clause, sentence): once with English
morphology and word order, once with German. So gender, case, verb position and separable prefixes
are right by construction, no download is needed, and the German is a function of the English.

From words to corpus:

    text                a text in both languages, and how words become a sentence
    lexicon             the words, as tables
    entries             the records read from them: Noun, Verb, Adjective
    numbers             number words, years, times of the clock
    nouns               inflection: plurals, cases, determiners, adjectives
    noun_phrases        what can be a subject or an object: noun phrases, names, pronouns
    verbs               inflection: tenses, modals, auxiliaries
    clauses             word order: negation, separable verbs, questions, relative clauses
    splits              which sentence belongs to which split, and which compounds train lacks
    sampler_clauses     random noun phrases and clauses that make sense
    sampler_sentences   random sentences
    generation          `generate`: the pairs of a split
"""

from t2t.phrasebook.generation import SIZES, generate

__all__ = ["SIZES", "generate"]
