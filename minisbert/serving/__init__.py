"""An HTTP server for vectors and reranking, in the protocol that OpenAI's clients speak.

``messages.py`` says what requests and answers hold, ``application.py`` checks what clients send and
answers it, ``batcher.py`` is the queue, where requests that wait together share a batch, and
``engine.py`` computes. ``connections.py`` ends connections that keep the server waiting. Imports
the rooms up to ``loading``; needs the ``serve`` extra.
"""
