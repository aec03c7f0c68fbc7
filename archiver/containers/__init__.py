"""Container images of a package. No torch here."""
