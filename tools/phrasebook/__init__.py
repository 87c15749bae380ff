"""The grammar of the phrasebook, the embedded English-German corpus: `python -m tools.phrasebook`.

The command writes `t2t/data/phrasebook.tsv.gz`, which `t2t.data.phrasebook` reads.

Each pair is rendered from one structure (noun phrase, clause, sentence): once with English
morphology and word order, once with German. So gender, case, verb position and separable prefixes
are correct by construction, and the German is a function of the English.

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
    generation          the pairs of a split
    noun_alignments     which words of a pair translate each other: nouns and adjectives
"""
