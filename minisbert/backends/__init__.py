"""Other ways to run a model: compiled ahead of time to native code, or exported to ONNX. No
parameters to train.

The graphs are the book's own forward pass, exported. Imports the rooms up to ``models``.
"""
