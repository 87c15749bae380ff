"""Section 5 of the paper: loop, step, optimizer, loss, checkpoints and the run directory."""
