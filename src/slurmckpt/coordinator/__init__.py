"""The per-job, per-node daemon that owns timer, pods, captures and restores."""
