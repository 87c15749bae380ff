"""From sentences to translations: batching by length, beam search, and the CTranslate2 engine."""
