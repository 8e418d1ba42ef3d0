"""What the three connectors share: clients, plugins, record formats, internal topics, schedules."""
