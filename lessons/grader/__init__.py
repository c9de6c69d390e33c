"""The grader of the exercises, behind ``lessons/check.py``.

``pieces`` reads the list of exercises (``cards.toml``), ``stubs`` writes their empty functions;
``sandbox`` runs a learner's file in a process of its own, ``guard`` refuses what would do the
exercise's work, ``ladder`` judges a function by the ``cases`` and names the known mistake that
gives the same numbers; ``result`` is what comes of it, ``classroom`` many of them. ``assembly``
joins a learner's pieces and the book to one file, ``your_model`` runs it.
"""
