"""What slurmd and slurmctld run through the scripts in prolog/ and epilog/."""
