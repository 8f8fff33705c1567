"""The store: where committed checkpoints live, shared by all nodes and never trusted. Knows neither CRIU nor Slurm."""
