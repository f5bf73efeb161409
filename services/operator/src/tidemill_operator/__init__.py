"""The operator: custom resources of Kubernetes become resources of Tidemill."""
