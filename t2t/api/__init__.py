"""The Python interface: `t2t.load`, the `Run` that it returns, and the translation of lines."""
