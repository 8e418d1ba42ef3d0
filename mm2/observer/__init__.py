"""The observable state of a process's flows: metrics, the dashboard and `mm2 status` all use the same snapshot."""
