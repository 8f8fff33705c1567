"""Everything that is said to Slurm: one port, two backends, and the text conventions of the fields that we use."""
