"""The boundary gate of NCCL ranks: its shared memory, closing and opening it, and what it tells about the ranks.

The other half is C: gate/, an NCCL profiler plugin. docs/gpu.md has the algorithm.
"""
