"""Files that the server hands on as they are."""
