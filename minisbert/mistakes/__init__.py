from minisbert.mistakes import bert, heads, losses, pipeline, scores
from minisbert.mistakes.planting import MISTAKES, planted

__all__ = ["MISTAKES", "bert", "heads", "losses", "pipeline", "planted", "scores"]
