"""A verdict as people read it: pages, charts, words, JUnit."""
