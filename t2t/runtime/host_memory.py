"""How the C library manages the memory of this process."""

import ctypes

# Parameters of mallopt, from glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_MAX = -4
_ARENA_MAX = -8


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory for later allocations, instead of returning it to Linux.

    On CPUs each training step allocates its buffers anew, and Linux clears all memory that it
    gives to a process. Memory that was kept is not cleared again. Call this before threads start:
    those that exist keep their own arenas. With other C libraries nothing happens.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_MAX, 0)  # large buffers, too, come from the heap
    mallopt(_TRIM_THRESHOLD, -1)  # the heap never shrinks
    mallopt(_ARENA_MAX, 1)  # one heap for all threads; those of further threads cannot be large
