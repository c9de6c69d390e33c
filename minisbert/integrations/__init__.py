"""Adapters that give minisbert's encoders the form that another library expects.

There is one file per library, which imports it, so import only the one that you need: ``from
minisbert.integrations.langchain import MinisbertEmbeddings``. ``engines.py`` is the exception: Ray,
Spark and datasets take a function. ``opening.py`` has the options of all, and ``transformers.py``
is what ``minisbert trace`` runs. ``docs/use-it-in.md`` and ``docs/engines.md`` have ten lines for
each. Imports the rooms up to ``loading``.
"""
