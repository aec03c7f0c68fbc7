"""The rules, one module for each topic. Each gets the objects of one plan and yields what it finds."""
