"""The speedrun: an empty folder to a search engine in ten CPU minutes; see ``SPEEDRUN.md``."""
