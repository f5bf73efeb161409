"""Files of the chart that are built from code: dashboards and custom resource definitions."""
