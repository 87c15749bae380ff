"""The phrasebook: a built-in English-German corpus, generated from a small synchronous grammar.

Each pair is rendered from one structure (noun phrase, clause, sentence): once with English
morphology and word order, once with German. So gender, case, verb position and separable prefixes
are correct by construction, no download is needed, and the German is a function of the English.

The modules, from words to corpus:

    text                a text in both languages; joins words to sentences
    lexicon             the words, as tables
    entries             the records read from the tables: Noun, Verb, Adjective
    numbers             number words, years, clock times
    nouns               inflection: plurals, cases, determiners, adjectives
    noun_phrases        subjects and objects: noun phrases, names, pronouns
    verbs               inflection: tenses, modals, auxiliaries
    clauses             word order: negation, separable verbs, questions, relative clauses
    splits              the split of each sentence, and the compounds held out of train
    sampler_clauses     random noun phrases and clauses that make sense
    sampler_sentences   random sentences
    generation          `generate`: the pairs of a split
"""

from t2t.phrasebook.generation import SIZES, generate

__all__ = ["SIZES", "generate"]
