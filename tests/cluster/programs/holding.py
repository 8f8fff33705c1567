"""For programs that are to be in the middle of their work when the test does its part, however slow the machine is."""

import os
import time


def hold(number: int, count: int) -> None:
    """Before step `number` of `count`: from three quarters on, wait while there is a file `hold` (harness.Cluster.submit).

    It looks so often that a job that is watched for hangs does not count as one.
    """
    while number >= count * 3 // 4 and os.path.exists("hold"):
        time.sleep(0.005)
