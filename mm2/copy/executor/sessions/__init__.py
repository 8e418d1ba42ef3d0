"""How copying of a partition starts and continues: sessions that are opened, continued, or replaced after a loss."""
