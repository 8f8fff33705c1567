"""Is this host fit for checkpoints? One check for each thing that can be wrong, a file for each topic."""
