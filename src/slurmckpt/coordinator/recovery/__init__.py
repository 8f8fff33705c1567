"""Brings a job through the events that it is to survive.

One module an event notices it and decides: crash, hang, preemption, deadline (the time limit). in_place restores all
ranks in the same allocation. scene has what they share; watch ties them to the job.

"""
