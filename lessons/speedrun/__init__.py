"""The speedrun: from an empty folder to a search engine in ten CPU minutes. Rules and tables:
``SPEEDRUN.md``.
"""
