"""Training: the objectives, their settings, and one run of them, with its folder, state and processes.

Objectives connect data, a loss and a metric; losses beyond the book, schedules, recipes, the gradient cache and
ablations of runs are here, too. The loop itself is the book's. Imports every room above except ``corpus``.
"""
