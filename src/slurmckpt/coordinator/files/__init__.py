"""The files that a job writes itself: as they were at the boundary, whatever has been written since.

`rules` decides what is done with each, `saving` measures and copies while the ranks stand still, `content` is how bytes
are moved, `companions` what belongs to a database, `carrying` whole directories, `putting_back` all of it at a restore.

Everything here that touches a file of the job runs in the thread with the user's identity.
"""
