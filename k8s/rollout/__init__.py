"""What talks to a cluster: deploy, rollback, delete, status, and a load test's Job."""
