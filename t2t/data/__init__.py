"""From corpora to batches: sources, tokenizer, token cache, batching, packing, loader."""
