"""slurmckpt: group checkpoints of Slurm jobs, restored on another node after a requeue."""

__version__ = "0.1.0"
