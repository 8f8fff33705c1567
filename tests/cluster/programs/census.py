"""Executed in a coordinator by sys.remote_exec (Python 3.14): how many objects of slurmckpt's and paths there are."""

import gc

gc.collect()
kept = ("slurmckpt.", "pathlib")
with open("/tmp/census.part", "w", encoding="ascii") as notes:
    print(sum(type(one).__module__.startswith(kept) for one in gc.get_objects()), file=notes)
__import__("os").rename("/tmp/census.part", "/tmp/census")
