"""Scores, significance tests and saved evaluations; the evaluator and the checkpoint watcher."""
