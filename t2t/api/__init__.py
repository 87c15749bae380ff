"""The work of programs as functions, `t2t.load`, and the `Run` that it returns."""
