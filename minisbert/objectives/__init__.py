"""Objectives: what a run learns from and how it is judged.

Readers of data files, data sets, batches, losses beyond the book, the objectives that connect a loss to data and a
metric, recipes, evaluation. Imports ``core``, ``system``, ``fast`` and ``models``.
"""
