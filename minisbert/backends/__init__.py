"""Other ways to run a model: compiled to native code, recorded on a GPU, or exported to ONNX.

Nothing here has parameters to train. The graphs are the book's own forward pass, exported. Imports
the rooms up to ``models``.
"""
