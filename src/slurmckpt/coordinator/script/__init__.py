"""The batch script as a participant of a checkpoint: a stand-in for srun in its pod, the real srun outside of it.

find        which srun the script will use        environment  SLURM_* of another incarnation
desk        where stand-ins come in               launch       one real srun, run by a launcher
script      all sruns of one script               stand_ins    their stand-ins in a frozen pod
inputs      input on its way to a step
"""
