"""Ablation sweeps: rows of overrides, their runs side by side, and the report."""
