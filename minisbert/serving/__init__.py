"""An HTTP server for vectors and reranking, in the protocol that OpenAI's clients speak.

``batcher.py`` computes requests that wait together in one batch, ``engine.py`` turns inputs into vectors and scores,
``requests.py`` checks what clients send, ``application.py`` speaks HTTP. Imports the rooms up to ``models``; needs the
``serve`` extra.
"""
