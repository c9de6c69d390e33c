"""Training: what is long and not about the loop, which is in ``minisbert/train.py``.

The losses (``table.py`` names them), the state for ``--resume``, the run's folder, processes and
large batches. The losses' formulas that the book lacks are in ``losses.py``.
"""

# The names in a run's folder. They are here because plots read it without torch.
RUN_CONFIG = "config.json"
RUN_LOG = "metrics.jsonl"
RESULTS = "results.json"
MODEL = "model"
STATE = "state"  # state.json, and state-120.safetensors: its tensors after step 120
BEST = "best"  # best-90.safetensors: the weights that were best on dev
