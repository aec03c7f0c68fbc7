"""What Prometheus and Grafana are given: series, expressions, rules, alerts, dashboard, the adapter's values."""
