"""From a ladder of sizes to a prediction: its rungs, the law of their losses, and the report."""
