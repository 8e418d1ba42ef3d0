"""Topics of a flow: which are selected, their names, configs and ACLs on the target, and replication loops."""
