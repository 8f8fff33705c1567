"""The inspection: one pass over /proc and the socket tables, into plain records.

Nothing here judges. `slurmckpt.capture.judgements` says what of it cannot be captured, `slurmckpt.capture.preflight`
asks them all.
"""
