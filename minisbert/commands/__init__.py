"""The commands; ``minisbert/__main__.py`` says which file has which."""
