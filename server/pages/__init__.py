"""The supervisor's own port."""
