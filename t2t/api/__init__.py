"""The Python interface: `t2t.load` and the `Run` that it returns."""
