"""The forms in which families of models write calls of tools and their reasoning: one file for each family, and
`choosing.py`, which tells by a chat template which one it is. Nothing here knows of requests or of answers."""
