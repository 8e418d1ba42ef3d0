"""What records are made of: schemas, structs, values with their schema, headers (org.apache.kafka.connect.data and .header)."""
