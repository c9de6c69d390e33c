"""Encoders beyond BERT: its relatives, and what came after it, each architecture in one file and in
the book's style.

``modern.py`` has the one forward of what came after BERT. Imports ``core`` and ``system``.
"""
