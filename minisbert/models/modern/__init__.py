"""Appendix to the book: what came after BERT, each architecture in one file and in the book's style.

A file may import the book, ``architecture.py`` and, of the models that have no encoder, what ``models/`` holds.
"""
