"""The speedrun: the best sentence encoder from nothing in thirty CPU minutes. Rules and table: ``SPEEDRUN.md``."""
