"""An HTTP server for vectors and reranking, in the protocol that OpenAI's clients speak.

``application.py`` checks what clients send and answers it, ``engine.py`` computes: requests that
wait together share a batch. Imports the rooms up to ``loading``; needs the ``serve`` extra.
"""
