"""Connect's data model: schemas, structs, values, headers (org.apache.kafka.connect.data and .header)."""
