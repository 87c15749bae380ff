"""Where programs run: device mesh, processes, compilation cache, and what all programs share."""
