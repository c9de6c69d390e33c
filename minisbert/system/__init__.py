"""The operating system and the terminal: console, atomic files, downloads, devices.

Imports ``core`` only. Every other room may import ``system``: saving a model needs atomic files,
loading one by name needs the asset manifest. Only ``devices`` and ``torch_internals`` import torch,
so ``minisbert assets`` starts at once.
"""
