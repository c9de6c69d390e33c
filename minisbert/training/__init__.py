"""Training: the objectives, their settings, and one run of them, with its folder, state and
processes.

Objectives connect data, a loss and a metric; losses beyond the book, schedules, recipes and the
gradient cache are here, too. The loop itself is the book's.
"""

# what a run's folder holds; here, because plots read it without torch
RUN_CONFIG, RUN_LOG, RESULTS = "config.json", "metrics.jsonl", "results.json"
MODEL, LAST, STATE = "model", "last", "state.safetensors"
