"""What an archive holds and what loading it would run. No torch here."""
