"""Everything that touches a broker: blocking connections with deadlines, a pool of them per cluster, admin calls with a result
or an error per item, records as bytes, and the raw fetch and produce of the copy engine. The protocol's schemas are
kafka-python's; its event loop and its clients are not used."""
