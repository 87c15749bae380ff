"""Memory that glibc keeps is not cleared again by Linux; counted by page faults."""

import platform

import pytest

from tests.programs import run_python

COUNT = """
import resource, sys, threading
import numpy as np
from t2t.runtime.host_memory import keep_freed_memory

if sys.argv[1] == "kept":
    keep_freed_memory()

def use_memory():
    for size in (64, 48, 80):
        np.ones(size << 20, np.uint8)

def count_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=use_memory)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

count_faults()
print(count_faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_used_again_without_page_faults() -> None:
    def count(kept: str) -> int:
        return int(run_python("-c", COUNT, kept).stdout)

    assert count("kept") < count("") / 10
