"""The highest rate that meets the objective, as evidence."""
