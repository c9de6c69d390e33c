"""The commands: ``minisbert NAME`` runs ``commands/NAME.py``."""
