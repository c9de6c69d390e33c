"""The course: numbered lessons, and a grader for the pieces that a learner rebuilds (``python -m lessons.check``)."""
