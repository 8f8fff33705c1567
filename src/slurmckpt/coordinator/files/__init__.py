"""The files of a job's own: as they were at the boundary, whatever has been written or removed since.

`rules` decides what is done with each that is written, `reading` with those that are only read, `saving` measures and
copies while the ranks stand still, `content` is how bytes are moved, `records` how a file is opened and noted,
`companions` what belongs to a database, `carrying` whole directories, `putting_back` all of it at a restore, one file
after the other with `returning`.

Everything here that touches a file of the job runs in the thread with the user's identity.
"""
