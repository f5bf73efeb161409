"""All services in one process, on one state directory: `tidemill up`."""
