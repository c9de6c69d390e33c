"""The speedrun: a race from random numbers to MiniLM's score; see ``SPEEDRUN.md``."""
