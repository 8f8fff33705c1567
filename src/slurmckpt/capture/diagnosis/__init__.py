"""CRIU's log in one sentence for a user. The log itself, kept beside the image, is for developers."""

from slurmckpt.capture.diagnosis.explain import LOG_TAIL, explain_dump, explain_restore, is_moment

__all__ = ["LOG_TAIL", "explain_dump", "explain_restore", "is_moment"]
