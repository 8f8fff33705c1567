"""What a restore needs to find unchanged: host, GPU, driver, engine and model. Knows neither Slurm nor CRIU."""
