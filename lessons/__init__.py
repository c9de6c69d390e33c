"""The course: numbered lessons, and a grader for the pieces that a learner rebuilds (``python -m
lessons.check``).
"""

import os

os.environ.setdefault(
    "CUDA_VISIBLE_DEVICES", ""
)  # every number of the course is the CPU's, also where there is a GPU
