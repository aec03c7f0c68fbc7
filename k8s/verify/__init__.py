"""An admission check without a cluster: schemas, rules, and the metric contract."""
