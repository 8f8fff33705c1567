"""CUDA state of the processes of a pod, by the driver's checkpoint API. Knows no Slurm.

driver     the API itself           errors     what its codes mean, and the remedy
group      all ranks at once        agent      the process that calls the driver, and outlives the coordinator
client     the agent, from asyncio  mapping    old GPUs to new ones
find       which processes          memory     does it fit into the job's memory limit?
    keeper     when agent and coordinator die at once
"""
