"""What the chart ships, built from code: Grafana's dashboards, and the custom resource definitions."""
