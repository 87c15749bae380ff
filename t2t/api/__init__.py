"""Functions that do the work of programs, `t2t.load`, and the `Run` that it returns."""
