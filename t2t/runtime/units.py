"""Numbers in a fitting unit."""


def show_bytes(count: float | None, digits: int = 4) -> str:
    """Formats a number of bytes, such as 757.2 MB; None is unknown."""
    if count is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if float(f"{count:.{digits}g}") < 1000:
            return f"{count:.{digits}g} {unit}"
        count /= 1000
    return f"{count:.{digits}g} TB"
