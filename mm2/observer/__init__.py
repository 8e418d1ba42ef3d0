"""What there is to see of the flows of a process: metrics, the dashboard and `mm2 status` all show the same snapshot."""
