"""Who may do what through REST, the dashboard and the metrics: authentication, roles, audit log.

One model for all listeners of a process. Access is denied by default. Neither an address nor a forwarded header
identifies a client.
"""
