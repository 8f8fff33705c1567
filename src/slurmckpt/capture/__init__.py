"""The processes of a pod: looking at them, judging what can be captured, writing and restoring their images."""
